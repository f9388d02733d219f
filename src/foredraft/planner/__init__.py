"""Who drafts, how far, and which draft is verified."""
