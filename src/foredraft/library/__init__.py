"""Where models live on this computer: what there is, what a name means, and getting more of it.

`split` and `repository` know how a model is spread over files, `catalogue` what is there, `elsewhere` what
other programs keep, `names` what the user meant, `removal` how a model goes, and `hub`, `hub_search` and
`transfer` how to get one from the Hugging Face Hub.
"""

from __future__ import annotations

from foredraft.library.catalogue import (
    default_model,
    list_models,
    models_dir,
    size_of,
    stem_of,
)
from foredraft.library.elsewhere import usual_places
from foredraft.library.hub import pull
from foredraft.library.hub_search import FoundModel, search
from foredraft.library.names import resolve
from foredraft.library.removal import Removal, to_remove
from foredraft.library.stored import StoredModel
from foredraft.library.transfer import Progress

__all__ = [
    "FoundModel",
    "Progress",
    "Removal",
    "StoredModel",
    "default_model",
    "list_models",
    "models_dir",
    "pull",
    "resolve",
    "search",
    "size_of",
    "stem_of",
    "to_remove",
    "usual_places",
]
