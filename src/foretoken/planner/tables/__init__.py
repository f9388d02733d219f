"""How likely drafted tokens are to be accepted. These modules may be compiled: `foretoken.compiled`."""

from foretoken import compiled

compiled.choose(compiled.TABLES)  # before any module of this folder is imported
