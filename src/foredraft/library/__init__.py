"""Where models live on this computer: what there is, what a name means, and getting more of it.

`split` and `repository` know how a model is spread over files, `catalogue` what is there, `names` what the
user meant, and `hub` and `transfer` how to get it from the Hugging Face Hub.
"""

from __future__ import annotations

from foredraft.library.catalogue import (
    StoredModel,
    default_model,
    list_models,
    models_dir,
    size_of,
    stem_of,
)
from foredraft.library.hub import pull
from foredraft.library.names import resolve
from foredraft.library.transfer import Progress

__all__ = [
    "Progress",
    "StoredModel",
    "default_model",
    "list_models",
    "models_dir",
    "pull",
    "resolve",
    "size_of",
    "stem_of",
]
