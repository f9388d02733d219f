"""Prefixes of texts whose KV cells are kept for reuse: in memory (`cache`) and on disk (`disk`)."""
