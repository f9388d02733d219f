"""Finds a trained head: by name, or the one that belongs to a model.

A head belongs to the model beside which it lies under the model's name, with or without its quantisation,
and `-eagle3`, `.eagle3` or `.head` after it: `NAME-eagle3.gguf`, or such a folder of safetensors. So does one
in the models folder's `heads` whose name begins with the first 16 digits of the model's hash, or of the hash
that all quantisations of its weights share; and, where there is none, one with such a name in `PACKAGED`.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from foredraft.errors import ModelError, ModelNotFoundError, quoted
from foredraft.library.catalogue import heads_dir, stem_of
from foredraft.library.fingerprint import fingerprint_of
from foredraft.library.names import as_path
from foredraft.library.repository import is_repository, repository_of
from foredraft.library.stored import is_head_name, quantization_of
from foredraft.library.survey import Survey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

ENDINGS = ("-eagle3", ".eagle3", ".head")
DIGITS = 16
"""Digits of a model's hash in the name of its head."""

PACKAGED = Path(__file__).parents[1] / "heads"
"""The heads that come with Foredraft."""


def resolve_head(name: str, folder: Path) -> Path:
    """The head that a name or path refers to: a file, or a folder of safetensors; names are those of heads in
    `folder`, the models folder, and of packaged ones, with or without extension, in any case. Raises
    ModelNotFoundError.
    """
    path = as_path(name)
    if path.is_file() or is_repository(path):
        return repository_of(path) or path
    wanted = name.casefold()
    for found in _heads_in(folder):
        if wanted in (found.name.casefold(), found.name.removesuffix(".gguf").casefold()):
            return found
    raise ModelNotFoundError(
        f"There is no head {quoted(name)}.",
        hint=f"Name its file, or put it into {heads_dir(folder)}.",
    )


def head_of(model: Path, folder: Path, weights_hash: Callable[[Path], str]) -> Path | None:
    """The head that belongs to a model found by `resolve`; None if there is none. `folder`: the models
    folder; `weights_hash`: that of the model's backend. Raises what that does, but for ModelError.
    """
    place = repository_of(model) or model
    stem = stem_of(model)
    stems = [stem, stem.removesuffix(_ending(stem))]  # of Q4_0.gguf nothing would be left
    wanted = [(each + ending).casefold() for each in stems if each for ending in ENDINGS]
    beside = {path.name.removesuffix(".gguf").casefold(): path for path in _entries(place.parent)}
    for name in wanted:
        if name in beside and _is_whole(beside[name]):
            return beside[name]
    hashes = cache(fingerprint_of), cache(weights_hash)
    for kept in (_whole_heads(heads_dir(folder)), packaged_heads()):
        for hash_of in hashes if kept else ():
            try:
                digits = hash_of(model)[:DIGITS]
            except (OSError, ModelError):  # loading it says so
                return None
            found = next((path for path in kept if digits and path.name.startswith(digits)), None)
            if found is not None:
                return found
    return None


def packaged_heads() -> list[Path]:
    """The heads that come with Foredraft, by name."""
    return _whole_heads(PACKAGED)


def _ending(stem: str) -> str:
    """The quantisation at the end of a stem, with what separates it."""
    quantization = quantization_of(stem)
    return stem[-len(quantization) - 1 :] if quantization else ""


def _heads_in(folder: Path) -> Iterable[Path]:
    """All heads in the models folder, whatever they belong to, those of `heads` first; then packaged ones."""
    yield from _whole_heads(heads_dir(folder))
    for path in Survey(folder).files(folder):
        found = path if path.suffix == ".gguf" else path.parent
        if is_head_name(found.name) and _is_whole(found):
            yield found
    yield from packaged_heads()


def _whole_heads(folder: Path) -> list[Path]:
    return [path for path in _entries(folder) if _is_whole(path)]


def _entries(folder: Path) -> list[Path]:
    """What lies in a folder, in order; nothing where that cannot be listed."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _is_whole(path: Path) -> bool:
    return is_repository(path) or (path.suffix == ".gguf" and path.is_file())
