"""Finds a trained head: by name, or the one that belongs to a model. Of one in several files it is the first.

A head belongs to the model beside which it lies under the model's name, with or without its quantisation,
and one of `ENDINGS` after it, the first one if there are several: `NAME-eagle3.gguf`, or such a folder of
safetensors. So does one in the models folder's `heads` whose name begins with the first 16 digits of the
model's hash, or of the hash that all quantisations of its weights share; and, where there is none, one with
such a name in `PACKAGED`.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from foredraft.errors import ConfigError, ModelError, ModelNotFoundError, quoted
from foredraft.library.catalogue import heads_dir, stem_of
from foredraft.library.fingerprint import fingerprint_of
from foredraft.library.names import as_path
from foredraft.library.repository import CONFIG, is_repository, repository_of
from foredraft.library.split import is_later_part, model_files, split_stem
from foredraft.library.stored import is_head_name, quantization_of
from foredraft.library.survey import Survey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

ENDINGS = ("-eagle3", ".eagle3", "-dspark", ".dspark", "-dflash", ".dflash", ".head")
DIGITS = 16
"""Digits of a model's hash in the name of its head."""

PACKAGED = Path(__file__).parents[1] / "heads"
"""The heads that come with Foredraft."""


def resolve_head(name: str, folder: Path) -> Path:
    """The head that a name or path refers to: a file, or a folder of safetensors; names are those of heads in
    `folder`, the models folder, and of packaged ones, with or without extension, in any case, or the
    beginning of one. Raises ModelNotFoundError, and ConfigError for a name of several heads.
    """
    path = as_path(name)
    if path.is_file() or is_repository(path):
        return repository_of(path) or model_files(path)[0]
    wanted = name.casefold()
    for matches in (_is_called, _begins_with):
        for heads in (_heads_in(folder), packaged_heads()):
            found = list(dict.fromkeys(head for head in heads if matches(head, wanted)))
            if len(found) > 1:
                raise several_heads(name, [str(head) for head in found])
            if found:
                return found[0]
    if path.is_dir():
        raise ModelNotFoundError(
            f"The folder {quoted(name)} is no head: it has no {CONFIG} with *.safetensors.",
            hint="The head of a GGUF model is a GGUF file: name that.",
        )
    raise ModelNotFoundError(
        f"There is no head {quoted(name)}.",
        hint=f"Name its file, or put it into {heads_dir(folder)}.",
    )


def several_heads(name: str, found: Sequence[str]) -> ConfigError:
    """The error for a name that is not enough."""
    return ConfigError(
        f"Several heads are called {quoted(name)}: {', '.join(found)}.",
        hint="Give more of its name, or its path.",
    )


def _is_called(head: Path, wanted: str) -> bool:
    return wanted in (head.name.casefold(), head.name.removesuffix(".gguf").casefold(), _stem(head))


def _begins_with(head: Path, wanted: str) -> bool:
    return bool(wanted) and head.name.casefold().startswith(wanted)


def head_of(model: Path, folder: Path, weights_hash: Callable[[Path], str]) -> Path | None:
    """The head that belongs to a model found by `resolve`; None if there is none. `folder`: the models
    folder; `weights_hash`: that of the model's backend. Raises what that does, but for ModelError.
    """
    place = repository_of(model) or model
    stem = stem_of(model)
    stems = [stem, stem.removesuffix(_ending(stem))]  # of Q4_0.gguf nothing would be left
    wanted = [(each + ending).casefold() for each in stems if each for ending in ENDINGS]
    beside = {_stem(path): path for path in reversed(_heads_of(place.parent))}
    for name in wanted:
        if name in beside:
            return beside[name]
    hashes = cache(fingerprint_of), cache(weights_hash)
    for kept in (_heads_of(heads_dir(folder)), packaged_heads()):
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
    return _heads_of(PACKAGED)


def known_heads(folder: Path) -> list[Path]:
    """All heads in `folder`, the models folder, and packaged ones, whatever they belong to."""
    return list(dict.fromkeys([*_heads_in(folder), *packaged_heads()]))


def _ending(stem: str) -> str:
    """The quantisation at the end of a stem, with what separates it."""
    quantization = quantization_of(stem)
    return stem[-len(quantization) - 1 :] if quantization else ""


def _heads_in(folder: Path) -> Iterable[Path]:
    """All heads in the models folder, whatever they belong to."""
    yield from _heads_of(heads_dir(folder))
    for path in Survey(folder).files(folder):
        found = path if path.suffix == ".gguf" else path.parent
        if is_head_name(found.name) and _is_head(found):
            yield found


def _stem(path: Path) -> str:
    """The name without extension and part number, in lower case."""
    return split_stem(path.name.removesuffix(".gguf")).casefold()


def _heads_of(folder: Path) -> list[Path]:
    """What in a folder may be a head, in order; nothing where that cannot be listed."""
    try:
        return [path for path in sorted(folder.iterdir()) if _is_head(path)]
    except OSError:
        return []


def _is_head(path: Path) -> bool:
    """Whether a path may be one: a folder of safetensors, or a GGUF file. Of a split one it is the first
    part; a later one only where that is missing, which reading it says.
    """
    if path.suffix != ".gguf" or not path.is_file():
        return is_repository(path)
    return not is_later_part(path.stem) or not model_files(path)[0].is_file()
