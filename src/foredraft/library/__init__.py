"""Models on this computer: listing them, finding one by name, downloading and deleting.

`split` and `repository` know a model's files, `catalogue` lists the models, `elsewhere` those of other
programs, `names` resolves names, `heads` finds the head of a model, `drafts` checks that named ones are
there, `removal` deletes models, and `hub`, `hub_search` and `transfer` download them from the Hugging Face
Hub.
"""

from __future__ import annotations

from foredraft.library.catalogue import (
    default_model,
    list_models,
    models_dir,
    size_of,
    stem_of,
)
from foredraft.library.drafts import check_drafts
from foredraft.library.elsewhere import usual_places
from foredraft.library.hub import parse_name, pull
from foredraft.library.hub_search import FoundModel, search
from foredraft.library.names import resolve
from foredraft.library.removal import Removal, to_remove
from foredraft.library.stored import StoredModel
from foredraft.library.transfer import Progress, PullStoppedError, Stop

__all__ = [
    "FoundModel",
    "Progress",
    "PullStoppedError",
    "Removal",
    "Stop",
    "StoredModel",
    "check_drafts",
    "default_model",
    "list_models",
    "models_dir",
    "parse_name",
    "pull",
    "resolve",
    "search",
    "size_of",
    "stem_of",
    "to_remove",
    "usual_places",
]
