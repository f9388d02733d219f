"""The cache of the Hugging Face Hub's own library, used by transformers, vLLM and others.

`models--owner--name/snapshots/COMMIT/FILE` are links to blobs; `refs/main` contains the current commit.
https://huggingface.co/docs/huggingface_hub/guides/manage-cache
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from foredraft.errors import ModelFormatError
from foredraft.library.regular import read_start
from foredraft.library.repository import (
    CACHED,
    CONFIG,
    SNAPSHOTS,
    cached_repository,
    is_repository,
    read_json,
)
from foredraft.library.stored import StoredModel, describe_folder, describe_gguf, gguf_models
from foredraft.library.survey import ReportSkipped, Survey, no_report

MOST_SNAPSHOTS = 16
"""Maximum snapshots of one repository."""

_WRITES = re.compile(r"(?:CausalLM|ConditionalGeneration|LMHeadModel)$")
"""Suffixes of transformers' classes that generate text: the cache also contains encoders and others."""


def cached_models(cache: Path, report: ReportSkipped = no_report) -> list[StoredModel]:
    """The models in a cache: of GGUF files in several commits the newest, and safetensors."""
    survey = Survey(cache, report)
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
    """The folders of the available commits, the newest first."""
    reference, current = folder / "refs" / "main", ""
    with suppress(OSError, ValueError):
        current = read_start(reference, 100).decode().strip()

    def age(path: Path) -> tuple[bool, float]:
        try:
            return path.name == current, path.stat().st_mtime
        except OSError:  # deleted in the meantime
            return False, 0.0

    return sorted(survey.folders(folder / SNAPSHOTS), key=age, reverse=True)[:MOST_SNAPSHOTS]


def _generates(folder: Path) -> bool:
    try:
        classes = read_json(folder / CONFIG).get("architectures")
    except (ModelFormatError, OSError):
        return False
    return isinstance(classes, list) and any(_WRITES.search(str(name)) for name in classes)
