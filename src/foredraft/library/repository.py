"""Models as the Hub has them for transformers: a folder with a configuration, a tokenizer and safetensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from foredraft.errors import ModelFormatError
from foredraft.library.split import model_files

SAFETENSORS = "safetensors"
"""What such a model is called where a GGUF has its quantisation: `owner/name:safetensors`."""

SUFFIX = ".safetensors"
CONFIG = "config.json"
WEIGHTS = "model.safetensors"
SNAPSHOTS = "snapshots"
CACHED = "models--"
"""How that cache names a model's folder: `models--owner--name/snapshots/COMMIT`."""

LARGEST_JSON = 32 << 20
"""Bytes. Each may become a hundred in memory; the index of 100,000 tensors has 10 MB."""

INDEX = "model.safetensors.index.json"
"""Which file each tensor is in, where there are several."""


def is_repository(folder: Path) -> bool:
    """Whether it is a folder as the Hub has them, with a configuration and weights as safetensors."""
    return (folder / CONFIG).is_file() and any(folder.glob(f"*{SUFFIX}"))


def repository_of(path: Path) -> Path | None:
    """The folder of safetensors that `path` is, or whose configuration or weights it is."""
    named = path.name == CONFIG or path.name.endswith((SUFFIX, f"{SUFFIX}.index.json"))
    folder = path.parent if named and path.is_file() else path
    return folder if is_repository(folder) else None


def cached_repository(folder: Path) -> str:
    """The repository ("owner/name") of a folder in the cache of the Hub's own library; nothing for others."""
    name = folder.parent.parent.name
    if folder.parent.name != SNAPSHOTS or not name.startswith(CACHED):
        return ""
    return name.removeprefix(CACHED).replace("--", "/")


def folder_name(folder: Path) -> str:
    """What a folder of safetensors is called; in that cache, where it is named after a commit, as its
    repository is.
    """
    return cached_repository(folder).rpartition("/")[2] or folder.name


def weight_files(folder: Path) -> tuple[Path, ...]:
    """The files with the weights of a folder, in order, which need not be there.

    Those that transformers reads: `model.safetensors`, else those its index names; in a folder with neither,
    all there are and the other parts of them. Raises ModelFormatError, OSError.
    """
    if (folder / WEIGHTS).is_file():
        return (folder / WEIGHTS,)
    if (folder / INDEX).is_file():
        return tuple(folder / name for name in indexed(folder / INDEX))
    found = [part for path in sorted(folder.glob(f"*{SUFFIX}")) for part in model_files(path)]
    return tuple(dict.fromkeys(found))


def indexed(index: Path) -> tuple[str, ...]:
    """The names of the files that an index spreads the tensors over. Raises ModelFormatError, OSError."""
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not places or not all(isinstance(n, str) for n in places.values()):
        raise ModelFormatError(f"{index} does not say which files the weights are in.", hint="Pull it again.")
    return tuple(sorted(set(places.values())))


def read_json(path: Path) -> dict[str, Any]:
    """An object in a JSON file. Raises ModelFormatError, OSError."""
    try:
        if path.stat().st_size > LARGEST_JSON:
            raise ValueError(f"it has over {LARGEST_JSON >> 20} MB")
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # neither JSON nor UTF-8, or nested without end
        raise ModelFormatError(f"{path} is damaged: {error}.", hint="Pull the repository again.") from None
    if not isinstance(value, dict):
        raise ModelFormatError(f"{path} holds no JSON object.", hint="Pull the repository again.")
    return value
