"""Models in the Hub's form for transformers: a folder with a configuration, a tokenizer and safetensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from foredraft.errors import ModelFormatError
from foredraft.library.regular import is_there
from foredraft.library.split import model_files

SAFETENSORS = "safetensors"
"""Takes the place of a GGUF's quantisation in a model's name: `owner/name:safetensors`."""

SUFFIX = ".safetensors"
CONFIG = "config.json"
WEIGHTS = "model.safetensors"
SNAPSHOTS = "snapshots"
CACHED = "models--"
"""Folder names in the Hub library's cache: `models--owner--name/snapshots/COMMIT`."""

LARGEST_JSON = 32 << 20
"""Maximum bytes of a JSON file, each of which may take a hundred in memory; the index of 100,000 tensors has
10 MB.
"""

INDEX = "model.safetensors.index.json"
"""The file with the location of each tensor, if there are several files."""


def is_repository(folder: Path) -> bool:
    """Whether a folder can be read and has the Hub's form, with a configuration and safetensors."""
    try:
        return is_there(folder / CONFIG) and any(folder.glob(f"*{SUFFIX}"))
    except OSError:
        return False


def repository_of(path: Path) -> Path | None:
    """The folder of safetensors that `path` is, or whose configuration or weights it is."""
    named = path.name == CONFIG or path.name.endswith((SUFFIX, f"{SUFFIX}.index.json"))
    folder = path.parent if named and path.is_file() else path
    return folder if is_repository(folder) else None


def cached_repository(folder: Path) -> str:
    """The repository ("owner/name") of a folder in the Hub library's cache; empty for other folders."""
    name = folder.parent.parent.name
    if folder.parent.name != SNAPSHOTS or not name.startswith(CACHED):
        return ""
    return name.removeprefix(CACHED).replace("--", "/")


def folder_name(folder: Path) -> str:
    """The name of a folder of safetensors; in the Hub library's cache, where folders are named by commit,
    that of its repository.
    """
    return cached_repository(folder).rpartition("/")[2] or folder.name


def weight_files(folder: Path) -> tuple[Path, ...]:
    """The files with a folder's weights, in order; they may be missing.

    As transformers: `model.safetensors`, else those in its index; in a folder with neither, all existing ones
    and their other parts. Raises ModelFormatError, OSError.
    """
    if is_there(folder / WEIGHTS):
        return (folder / WEIGHTS,)
    if is_there(folder / INDEX):
        return tuple(folder / name for name in indexed(folder / INDEX))
    found = [part for path in sorted(folder.glob(f"*{SUFFIX}")) for part in model_files(path)]
    return tuple(dict.fromkeys(found))


def indexed(index: Path) -> tuple[str, ...]:
    """The names of the files in an index of tensors. Raises ModelFormatError, OSError."""
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not places or not all(isinstance(n, str) for n in places.values()):
        raise ModelFormatError(f"{index} does not list the files of the weights.", hint="Pull it again.")
    return tuple(sorted(set(places.values())))


def read_json(path: Path) -> dict[str, Any]:
    """Read an object from a JSON file. Raises ModelFormatError, OSError."""
    try:
        if path.stat().st_size > LARGEST_JSON:
            raise ValueError(f"it is larger than {LARGEST_JSON >> 20} MB")
        if not is_there(path):
            raise ValueError("it is not a regular file")
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # not JSON or UTF-8, or nested too deeply
        raise ModelFormatError(f"{path} is damaged: {error}.", hint="Pull the repository again.") from None
    if not isinstance(value, dict):
        raise ModelFormatError(f"{path} is not a JSON object.", hint="Pull the repository again.")
    return value
