"""Drafts for a model of one's own, as `foredraft draft` has them: what one is worth, and making one."""
