"""Chat templates: what they can do, running them out of harm's way, and keeping clients' text plain text."""
