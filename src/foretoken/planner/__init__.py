"""Who drafts, how far, and which draft is verified. These modules may be compiled: `foretoken.compiled`."""

from foretoken import compiled

compiled.choose()  # before any module of this folder is imported
