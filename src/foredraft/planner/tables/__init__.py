"""How likely drafted tokens are to be accepted."""
