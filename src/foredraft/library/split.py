"""Models split over several files, `name-00001-of-00003.gguf` and so on, as llama.cpp names them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_PART = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})$")


def split_stem(stem: str) -> str:
    """The name of the model that a file of this stem belongs to: the stem without its part number."""
    match = _PART.match(stem)
    return match["stem"] if match else stem


def is_later_part(stem: str) -> bool:
    """Whether a file of this stem is a part of a split model other than the first."""
    match = _PART.match(stem)
    return match is not None and int(match["number"]) != 1


def model_files(path: Path) -> tuple[Path, ...]:
    """All files of a model of which `path` is any part, in order; they may be missing."""
    match = _PART.match(path.stem)
    if match is None:
        return (path,)
    stem, count = match["stem"], int(match["count"])
    return tuple(path.with_name(f"{stem}-{n:05d}-of-{count:05d}{path.suffix}") for n in range(1, count + 1))
