"""The file of a model's vision (mmproj): found where the program that downloaded the model has put it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from foredraft.errors import UnsupportedModelError
from foredraft.library import llamacpp_cache, ollama
from foredraft.library.regular import is_there
from foredraft.library.split import split_stem
from foredraft.library.stored import is_head_name, is_model_name, quantization_of

ARCHITECTURE = "clip"
"""What the header of a file of vision says in place of a model's architecture."""

NONE = Path("none")
"""What switches vision off where a file is named."""

_IS_MMPROJ = re.compile(r"(?:^|[-_.])mmproj(?:[-_.]|$)", re.IGNORECASE)
_PRECISION = re.compile(
    r"[-_.](?:bf16|fp?(?:16|32)|i?q\d\w*|tq\d\w*|(?:mx|nv)fp4\w*|ud)(?=[-_.]|$)", re.IGNORECASE
)
_TUNED = re.compile(r"[-_.]it(?=[-_.]|$)", re.IGNORECASE)
_WORD = re.compile(r"[^\W_]+")
_PIECE = re.compile(r"[0-9]+|[^\W\d_]+")
_PREFERRED = ("fp?16", "bf16", "q8_0", "fp?32")
"""16 bits first: their encoder's numbers are the model's own, and its file is small."""


def is_mmproj(path: Path) -> bool:
    """Whether a GGUF's name says that it holds the vision of another."""
    return path.suffix.lower() == ".gguf" and bool(_IS_MMPROJ.search(path.stem))


def vision_alone(path: Path) -> UnsupportedModelError:
    """The error for a file of vision where a model is wanted."""
    return UnsupportedModelError(
        f"{path.name} is the vision of a model, not a model.",
        hint="Load the model; this file is found beside it, or named with --mmproj.",
    )


def find_mmproj(model: Path) -> Path | None:
    """The mmproj file of a GGUF: the one that Ollama's or llama.cpp's list names, else the one that lies
    beside it; None if there is none.
    """
    listed = ollama.projector_of(model) or llamacpp_cache.projector_of(model)
    return listed or fitting(model, _beside(model))


def fitting(model: Path, files: Iterable[Path]) -> Path | None:
    """The mmproj file for a model among `files`, by their names and folders: the one in the model's folder
    with most of the model's name, in whole words from its start, or any where there are files of no other
    model. If the folder is that of a quantisation, the one above is next.
    """
    known = list(files)
    for folder in _folders(model):
        here = [path for path in known if path.parent == folder]
        found = [path for path in here if is_mmproj(path)]
        named = [path for path in found if _shared(model, path)]
        others = [path for path in here if _is_model(path) and _pieces(path) != _pieces(model)]
        chosen = named or ([] if others else found)
        if chosen:
            return min(chosen, key=lambda path: (-_shared(model, path), *_preference(path)))
    return None


def _folders(model: Path) -> Iterator[Path]:
    yield model.parent
    if quantization_of(model.parent.name):
        yield model.parent.parent


def _beside(model: Path) -> Iterator[Path]:
    for folder in _folders(model):
        try:
            entries = sorted(folder.iterdir())
        except OSError:
            continue
        yield from (entry for entry in entries if entry.suffix.lower() == ".gguf" and is_there(entry))


def _is_model(path: Path) -> bool:
    return is_model_name(path.name) and not is_head_name(path.name)


def _shared(model: Path, mmproj: Path) -> int:
    """How many letters of a model's name are that of an mmproj file; 0 if that is another's, or has none."""
    for tuned in (True, False):
        name = _without_mmproj(_plain(mmproj, tuned=tuned))
        words = _WORD.findall(_plain(model, tuned=tuned))
        starts = (_PIECE.findall(" ".join(words[: count + 1])) for count in range(len(words)))
        if name and name in starts:
            return sum(map(len, name))
    return 0


def _pieces(path: Path) -> list[str]:
    """The runs of letters and of digits in a model's name: programs differ in what is between them."""
    return _PIECE.findall(_plain(path, tuned=False))


def _plain(path: Path, *, tuned: bool) -> str:
    """The model's name in that of a file, without the precision of its numbers; `tuned`: with "it", which
    many leave out.
    """
    name = _PRECISION.sub("", split_stem(path.stem))
    return (name if tuned else _TUNED.sub("", name)).lower()


def _without_mmproj(name: str) -> list[str]:
    """The pieces of the model's name in that of an mmproj file; none if it has no name."""
    pieces = _PIECE.findall(name)
    pieces.remove("mmproj")
    return pieces[1:] if pieces[:1] == ["model"] else pieces


def _preference(path: Path) -> tuple[int, str]:
    name = path.stem.lower()
    place = next(
        (i for i, kind in enumerate(_PREFERRED) if re.search(rf"[-_.]{kind}$", name)), len(_PREFERRED)
    )
    return place, path.name
