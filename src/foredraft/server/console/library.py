"""The models on this computer, for the console: looked through at most every few seconds."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from foredraft.config import OtherPrograms
from foredraft.engine.model_facts import ModelFacts, facts_of
from foredraft.engine.options import model_options
from foredraft.errors import ForedraftError
from foredraft.library import StoredModel, list_models, models_dir, resolve
from foredraft.library.repository import repository_of
from foredraft.library.split import model_files
from foredraft.server.settings import DRAFT_MODEL, ModelSettings, ServerSettings

FRESH_S = 5.0
"""Seconds after which the folders are looked through again."""


@dataclass(frozen=True, slots=True)
class Look:
    """One look: the models folder, all models, and the files of configured models, by their `path` setting;
    None for one that is not there. `real`: what identifies each model's files, by its path.
    """

    folder: Path
    stored: tuple[StoredModel, ...]
    files: Mapping[str, Path | None]
    real: Mapping[Path, frozenset[Path]]

    def served_as(self, model: StoredModel, settings: ServerSettings) -> list[str]:
        """The configured models whose files these are."""
        used = self._uses(model)
        return [name for name, one in settings.models.items() if one.path in used]

    def drafting_for(self, model: StoredModel, settings: ServerSettings) -> list[str]:
        """The configured models that it drafts for."""
        used = self._uses(model)
        return [name for name, one in settings.models.items() if not used.isdisjoint(draft_models(one))]

    def _uses(self, model: StoredModel) -> set[str]:
        mine = self.real[model.path] if model.path in self.real else _files(model.path)
        return {
            name
            for name, file in self.files.items()
            if file is not None and not mine.isdisjoint(self.real[file])
        }


def draft_models(model: ModelSettings) -> list[str]:
    """The draft models in a model's settings."""
    stages = model.speculation().stages
    return [
        stage.options["model"] for stage in stages if stage.name == DRAFT_MODEL and "model" in stage.options
    ]


class Library:
    """Looks through the models folder and those of other programs (None is the usual ones). Its methods
    block: call them on a thread.
    """

    def __init__(self, others: OtherPrograms | None = None) -> None:
        self._others = others
        self._looking = threading.Lock()
        self._last: tuple[float, ServerSettings, Look] | None = None

    def folder(self, settings: ServerSettings) -> Path:
        """The models folder."""
        return models_dir(model_options({"cache_dir": settings.cache_dir}).cache_dir)

    def others(self) -> OtherPrograms:
        """The folders of other programs."""
        return model_options({"other_programs": self._others}).model.other_programs

    def look(self, settings: ServerSettings, *, fresh: bool = False) -> Look:
        """What is there; with `fresh` right now. What cannot be read is left out."""
        with self._looking:
            if not fresh and self._last is not None:
                at, known, look = self._last
                if monotonic() - at < FRESH_S and known is settings:
                    return look
            folder, others = self.folder(settings), self.others()
            paths = {model.path for model in settings.models.values()}
            paths |= {draft for model in settings.models.values() for draft in draft_models(model)}
            files = {path: _found(path, folder, others) for path in paths}
            stored = tuple(list_models(folder, others))
            found = {model.path for model in stored} | {file for file in files.values() if file is not None}
            look = Look(folder, stored, files, {path: _files(path) for path in found})
            self._last = monotonic(), settings, look
            return look


def facts(path: Path | None) -> ModelFacts | None:
    """The facts of a model, as far as its files can be read."""
    try:
        return None if path is None else facts_of(path)
    except (ForedraftError, OSError):
        return None


def _found(path: str, folder: Path, others: OtherPrograms) -> Path | None:
    try:
        return resolve(path, folder, others)
    except (ForedraftError, OSError):
        return None


def same_files(one: Path, other: Path) -> bool:
    """Whether two paths are those of the same model."""
    return not _files(one).isdisjoint(_files(other))


def _files(path: Path) -> frozenset[Path]:
    """What identifies a model's files: its folder, or the real ones."""
    folder = repository_of(path)
    return frozenset(one.resolve() for one in ([folder] if folder is not None else model_files(path)))
