"""Which model a file is: its hash as `ModelInfo.file_hash` has it, known before the model is loaded."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from foredraft.library.repository import CONFIG, repository_of, weight_files

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_SAMPLE = 1 << 20


def fingerprint(files: Sequence[Path]) -> str:
    """A hash of the sizes of a model's files and a sample of their content: hashing 40 GB would take a
    minute. Raises OSError.
    """
    digest = hashlib.sha256()
    for path in files:
        size = path.stat().st_size
        digest.update(str(size).encode())
        with path.open("rb") as file:
            for offset in (0, size // 3, 2 * size // 3, max(0, size - _SAMPLE)):
                file.seek(offset)
                digest.update(file.read(_SAMPLE))
    return digest.hexdigest()[:32]


def fingerprint_of(path: Path) -> str:
    """The hash of a model found by `resolve`. Raises OSError, ModelFormatError."""
    folder = repository_of(path)
    return fingerprint([path] if folder is None else [folder / CONFIG, *weight_files(folder)])
