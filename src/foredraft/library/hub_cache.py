"""The cache of the Hugging Face Hub's own library, which transformers, vLLM and others fill.

`models--owner--name/snapshots/COMMIT/FILE` are links to blobs; `refs/main` names the commit that was current.
https://huggingface.co/docs/huggingface_hub/guides/manage-cache
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from foredraft.errors import ModelFormatError
from foredraft.library.repository import (
    CACHED,
    CONFIG,
    SNAPSHOTS,
    cached_repository,
    is_repository,
    read_json,
)
from foredraft.library.stored import StoredModel, describe_folder, describe_gguf, gguf_models
from foredraft.library.survey import Survey, Told, nobody

MOST_SNAPSHOTS = 16
"""Of one repository."""

_WRITES = re.compile(r"(?:CausalLM|ConditionalGeneration|LMHeadModel)$")
"""How transformers names the classes that generate text: the cache also holds encoders and the like."""


def cached_models(cache: Path, told: Told = nobody) -> list[StoredModel]:
    """The models in a cache: of a file that several commits have the newest, and of safetensors, too."""
    survey = Survey(cache, told)
    repositories = [folder for folder in survey.folders(cache) if folder.name.startswith(CACHED)]
    return [model for folder in repositories for model in _models(survey, folder)]


def _models(survey: Survey, folder: Path) -> list[StoredModel]:
    ggufs: dict[Path, StoredModel] = {}
    tensors: list[StoredModel] = []
    for snapshot in _snapshots(survey, folder):
        name = cached_repository(snapshot)
        for path in gguf_models(survey.files(snapshot, deepest=2)):
            ggufs.setdefault(path.relative_to(snapshot), describe_gguf(path, "huggingface", name))
        if not tensors and is_repository(snapshot) and _generates(snapshot):
            tensors.append(describe_folder(snapshot, "huggingface", name))
    return [*ggufs.values(), *tensors]


def _snapshots(survey: Survey, folder: Path) -> list[Path]:
    """The commits that are there, the newest first."""
    reference, current = folder / "refs" / "main", ""
    with suppress(OSError, ValueError):
        if reference.is_file():
            with reference.open(encoding="utf-8") as file:
                current = file.read(100).strip()

    def age(path: Path) -> tuple[bool, float]:
        try:
            return path.name == current, path.stat().st_mtime
        except OSError:  # gone in the meantime
            return False, 0.0

    return sorted(survey.folders(folder / SNAPSHOTS), key=age, reverse=True)[:MOST_SNAPSHOTS]


def _generates(folder: Path) -> bool:
    try:
        classes = read_json(folder / CONFIG).get("architectures")
    except (ModelFormatError, OSError):
        return False
    return isinstance(classes, list) and any(_WRITES.search(str(name)) for name in classes)
