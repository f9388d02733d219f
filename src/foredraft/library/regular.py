"""Files in folders that other programs write: nothing but regular files is read, since a pipe has no end."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def size_of_file(path: Path) -> int | None:
    """The bytes of a regular file, or None if there is none, whatever the path is."""
    try:
        status = path.stat()
    except (OSError, ValueError):  # among them: a name that is too long, or that no file can have
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def is_there(path: Path) -> bool:
    """Whether there is a regular file."""
    return size_of_file(path) is not None


def read_start(path: Path, most: int) -> bytes:
    """The first `most` bytes of a regular file, or all if it has fewer. Raises OSError, ValueError."""
    with open(path, "rb", opener=_without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        return file.read(most)


def _without_waiting(path: str, flags: int) -> int:
    """Opens a pipe too without waiting for its other end."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
