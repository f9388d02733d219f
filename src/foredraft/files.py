"""Atomic file writes: after a crash a file has either its old or its new content."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_atomically(path: Path, content: bytes | bytearray, *, mode: int = 0o600) -> None:
    """Replace the content of `path`, through a temporary file in the same directory. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_output(path: Path, content: bytes | bytearray, *, mode: int = 0o644) -> None:
    """Write an output file that the user named: a regular file atomically, a device or pipe in place.

    Raises OSError.
    """
    if path.exists() and not path.is_file():
        path.write_bytes(content)
    else:
        write_atomically(path, content, mode=mode)
