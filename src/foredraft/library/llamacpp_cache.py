"""llama.cpp's own cache, of before it used that of the Hub's library: all files lie in one folder.

`manifest=OWNER=REPO=TAG.json` is the Hub's answer for a tag, and names the model's file and that of its
vision (mmproj); both lie there as `OWNER_REPO_FILE` (common/download.cpp).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from foredraft.library.regular import is_there, read_start
from foredraft.library.stored import StoredModel, describe_gguf
from foredraft.library.survey import ReportSkipped, Survey, no_report

_MANIFEST = "manifest="
_LARGEST_JSON = 1_000_000


def llamacpp_models(folder: Path, report: ReportSkipped = no_report) -> list[StoredModel]:
    """The models of the manifests in a folder, as far as their files are there."""
    found: dict[Path, StoredModel] = {}
    for repository, manifest in _manifests(Survey(folder, report).files(folder, deepest=0)):
        model = _file(folder, repository, manifest.get("ggufFile"))
        if model is not None and is_there(model):
            found.setdefault(model, describe_gguf(model, "llamacpp", repository))
    return list(found.values())


def projector_of(model: Path) -> Path | None:
    """The mmproj file that a manifest in the model's folder names beside it, if it is there."""
    folder = model.parent
    try:
        files = sorted(folder.glob(f"{_MANIFEST}*.json"))
    except OSError:
        return None
    for repository, manifest in _manifests(files):
        if _file(folder, repository, manifest.get("ggufFile")) == model:
            found = _file(folder, repository, manifest.get("mmprojFile"))
            if found is not None and is_there(found):
                return found
    return None


def _manifests(files: Iterable[Path]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(repository, values) of each manifest that can be read."""
    for file in files:
        name = file.name.removeprefix(_MANIFEST).removesuffix(".json").split("=")
        if not file.name.startswith(_MANIFEST) or len(name) != 3:
            continue
        try:
            values = json.loads(read_start(file, _LARGEST_JSON))
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(values, dict):
            yield "/".join(name[:2]), values


def _file(folder: Path, repository: str, named: object) -> Path | None:
    """Where a file of a repository lies; None if `named` names none."""
    name = named.get("rfilename") if isinstance(named, dict) else None
    return folder / f"{repository}_{name}".replace("/", "_") if isinstance(name, str) and name else None
