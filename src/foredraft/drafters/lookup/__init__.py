"""What n-gram drafters do for each token: finding where a text's end was before, and what followed there.

Modules with a `.pxd` beside them, which says the types of their numbers, may be compiled
(`foredraft.compiled`).
"""

from foredraft import compiled

compiled.choose(compiled.LOOKUP)  # before any module of this folder is imported
