"""Who drafts, how far, and which draft is verified. These modules may be compiled: `foredraft.compiled`."""

from foredraft import compiled

compiled.choose(compiled.PLANNER)  # before any module of this folder is imported
