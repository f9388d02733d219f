"""Chat templates: their abilities, isolated rendering, and keeping clients' text plain text."""
