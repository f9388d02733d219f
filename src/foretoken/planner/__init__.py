"""Who drafts, how far, and which draft is verified. These modules may be compiled: `foretoken.compiled`."""

from foretoken import compiled

compiled.choose(compiled.PLANNER)  # before any module of this folder is imported
