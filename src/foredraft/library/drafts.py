"""Whether the files are there that a speculation names."""

from __future__ import annotations

from pathlib import Path

from foredraft.config import OFF, OtherPrograms, Speculation
from foredraft.errors import ModelNotFoundError
from foredraft.library.heads import resolve_head
from foredraft.library.names import resolve

HEADS = "heads"
DRAFTING = {"draft-model": "draft model", HEADS: "head"}
"""Drafters that need a file, and what it is."""


def check_drafts(speculation: Speculation, folder: Path, others: OtherPrograms) -> None:
    """Raises ModelNotFoundError if a named draft model or head is neither in `folder`, the models folder, nor
    in those of other programs; ConfigError for a name of several heads.

    The engine would report it and continue without, as when a draft model fails later; but a model that
    the user names is meant to be used.
    """
    for stage in speculation.stages:
        if stage.name not in DRAFTING or not (named := stage.options.get("model")):
            continue
        what = DRAFTING[stage.name]
        try:
            if stage.name != HEADS:
                resolve(named, folder, others)
            elif named != OFF:
                resolve_head(named, folder)
        except ModelNotFoundError as error:
            raise ModelNotFoundError(
                f"The {what} cannot be used: {error.message}",
                hint=f"Name another, or leave it out: 'auto' also drafts without a {what}.",
            ) from None
