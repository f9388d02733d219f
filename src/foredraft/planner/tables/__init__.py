"""How likely drafted tokens are to be accepted. These modules may be compiled: `foredraft.compiled`."""

from foredraft import compiled

compiled.choose(compiled.TABLES)  # before any module of this folder is imported
