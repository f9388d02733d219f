"""Files that more than one process uses: atomic writes, after which a crash leaves either the old or the new
content, and locks.
"""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from foredraft.errors import ConfigError


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


def check_folder(path: Path) -> None:
    """Raises ConfigError where the folder of an output file that the user named is not there: before the work
    rather than after. None is made, as a slip in the name would make one.
    """
    if not path.parent.is_dir():
        raise ConfigError(f"There is no folder {path.parent}.", hint="Create it, or name another folder.")


def write_output(path: Path, content: bytes | bytearray, *, mode: int = 0o644) -> None:
    """Write an output file that the user named: a regular file atomically, a device or pipe in place.

    Raises OSError.
    """
    if path.exists() and not path.is_file():
        path.write_bytes(content)
    else:
        write_atomically(path, content, mode=mode)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other processes and threads out that lock the same path. The file is there only meanwhile; its
    folder is made if needed. Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            lock(file)
            if not is_at(file, path):  # its holder has removed it
                continue
            try:
                yield
            finally:
                with suppress(OSError):  # Windows removes no open file
                    path.unlink()
            return
        finally:
            os.close(file)


def lock(descriptor: int, *, wait: bool = True) -> None:
    """Lock an open file until it is closed. Raises OSError if it is taken: without `wait` at once."""
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(descriptor, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file is still the one of that name."""
    try:
        named = path.stat()
    except FileNotFoundError:
        return False
    held = os.fstat(descriptor)
    return (held.st_dev, held.st_ino) == (named.st_dev, named.st_ino) and stat.S_ISREG(held.st_mode)
