"""The HTTP server: several clients at once, in the APIs they already speak."""
