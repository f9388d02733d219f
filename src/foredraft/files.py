"""Writing files so that a crash leaves either the old content or the new."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_atomically(path: Path, content: bytes | bytearray, *, mode: int = 0o600) -> None:
    """Replace `path` by `content`, through a temporary file in the same directory. Raises OSError."""
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
    """Write what a person asked for to where they said: a file as a whole, but a device or a pipe is written
    to, for nothing may take its place. Raises OSError.
    """
    if path.exists() and not path.is_file():
        path.write_bytes(content)
    else:
        write_atomically(path, content, mode=mode)
