"""Which trained head drafts for a model.

What a head reads has to be known before the model is loaded (`ModelOptions.watch`), because that changes the
model's graphs. So the speculation settings decide twice: what the model is loaded with, and, when they come
into force, which head is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from foredraft.config import OFF, ModelOptions, Speculation, Stage
from foredraft.errors import ForedraftError, ModelError, ModelNotFoundError, UnsupportedModelError
from foredraft.library import models_dir
from foredraft.library.heads import head_of, resolve_head
from foredraft.protocols import Head, Model
from foredraft.registry import backend_for

HEADS = "heads"
"""The name of the drafter."""

OWN = "its own layers"

Notice = Callable[[str], None]


class Found(NamedTuple):
    """A head for a model: its file, None for the model's own layers, and the features that it reads."""

    file: Path | None
    needs: tuple[str, ...]

    @property
    def name(self) -> str:
        """What is shown of it."""
        return OWN if self.file is None else str(self.file)


def _ignore(note: str) -> None:
    """Ignore the note."""


def find_head(target: Path, name: str, options: ModelOptions, notice: Notice = _ignore) -> Found | None:
    """The head of that name (or path), or with "" the one that belongs to the model `target`; None if none
    does. One that belongs to it and cannot be used is left out, with a `notice`.

    Raises ModelError for a named head that cannot be used, ConfigError, MissingDependencyError.
    """
    folder, backend = models_dir(options.cache_dir) if options.cache_dir else Path(), backend_for(target)
    if name:
        named = resolve_head(name, folder)
        return Found(named, backend.features_for(target, named, options))
    belonging = head_of(target, folder, lambda path: backend.weights_hash(path, options))
    for file in (belonging, None) if belonging else (None,):
        try:
            needs = backend.features_for(target, file, options)
        except ModelError as error:
            what = file or "multi-token prediction"
            notice(f"{what} cannot be used with this model: {error.message.splitlines()[0]}")
        else:
            if needs:
                return Found(file, needs)
    return None


def with_heads(target: Path, speculations: Iterable[Speculation], options: ModelOptions) -> ModelOptions:
    """The options that the model `target` has to be loaded with for these settings; without `watch` no head
    drafts. What is wrong with a head is said when it is loaded.
    """
    needed: dict[str, None] = {}
    files: dict[Path | None, None] = {}
    for speculation in speculations:
        name = _named(speculation)
        try:
            found = None if name is None else find_head(target, name, options)
        except ForedraftError:
            continue
        if found is not None:
            needed |= dict.fromkeys(found.needs)
            files[found.file] = None
    return replace(options, watch=tuple(needed), heads=tuple(files))


def _named(speculation: Speculation) -> str | None:
    """The head that a setting asks for, "" for the one that belongs to the model; None: it asks for none."""
    for stage in speculation.stages:
        if stage.name == HEADS:
            return None if switched_off(stage) else stage.options.get("model", "")
    return "" if speculation.adaptive else None


def switched_off(stage: Stage) -> bool:
    """Whether this is `heads:model=off`: no head drafts, not even the one that belongs to the model."""
    return stage.name == HEADS and stage.options.get("model") == OFF


def belongs(model: Model, options: ModelOptions) -> bool:
    """Whether there is a head that belongs to a loaded model, or what looks like one."""
    path = model.info.path
    if not path:
        return False
    unusable: list[str] = []
    try:
        return find_head(Path(path), "", options, unusable.append) is not None or bool(unusable)
    except ForedraftError:
        return False


def load_head(
    model: Model, name: str, options: ModelOptions, unwatched: str = "", *, sequences: int, notice: Notice
) -> tuple[Head, str]:
    """(the head of that name, or with "" the one that belongs to the model; what is shown of it).

    `unwatched`: why the model was loaded without what it reads, if it should have been. One that belongs to
    the model and cannot be used is a `notice` where another drafts. Raises what `HeadLoader` does.
    """
    info = model.info
    if not info.path:  # a model that was made by hand
        return model.load_head(Path(name) if name else None, sequences=sequences), name or OWN
    unusable: list[str] = []
    found = find_head(Path(info.path), name, options, unusable.append)
    if found is None and unusable:
        raise UnsupportedModelError("; ".join(unusable), hint="Name another head: heads:model=FILE")
    if found is None:
        raise ModelNotFoundError(
            f"{info.name} has no layers for multi-token prediction, and no head was found for it.",
            hint="Name one: heads:model=FILE",
        )
    if not set(found.needs) <= set(model.capabilities.features):
        raise UnsupportedModelError(
            unwatched
            or f"{info.name} was loaded without the hidden states that its head reads: load it again.",
            hint="What a head reads is settled when the model is loaded.",
        )
    for note in unusable:
        notice(note)
    return model.load_head(found.file, sequences=sequences), found.name
