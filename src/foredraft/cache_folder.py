"""The user's folder for caches, and moving there once what was kept under the project's former name."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path

import platformdirs

NAME = "foredraft"
FORMER_NAME = "foretoken"
"""Until November 2026. It belongs to another published package."""

_OURS = ("models", "store", "profiles", "probes", "prefixes", "history")
"""What was kept there. The folder may also be the other package's, and what is its stays."""

_TAGGED = ("store/suffix-*.bin", "profiles/*.json")
"""Files whose first bytes name the project. What else does is measured or read again."""
_HEAD = 64

_log = logging.getLogger(__name__)


def default_cache_dir() -> Path:
    """The user's cache folder for Foredraft; it may not exist yet."""
    folder = Path(platformdirs.user_cache_dir(NAME, appauthor=False))
    move_former(Path(platformdirs.user_cache_dir(FORMER_NAME, appauthor=False)), folder)
    return folder


def move_former(former: Path, folder: Path) -> None:
    """Move what is ours in `former` into `folder`, but for names that are there already; one line says so."""
    if not any((former / name).exists() for name in _OURS):
        return
    _retag(former)
    moved = [name for name in _OURS if _move(former / name, folder / name)]
    with suppress(OSError):
        former.rmdir()  # unless something stayed
    if moved:
        _log.warning("The project has a new name: %s moved from %s to %s.", ", ".join(moved), former, folder)


def _move(entry: Path, target: Path) -> bool:
    if target.exists() or not entry.exists():
        return False
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        entry.rename(target)
    except OSError:  # another process was faster, or may not: nothing is lost where it lies
        return False
    return True


def _retag(folder: Path) -> None:
    for pattern in _TAGGED:
        for path in folder.glob(pattern):
            with suppress(OSError), path.open("r+b") as file:
                head = file.read(_HEAD)
                file.seek(0)
                file.write(head.replace(FORMER_NAME.encode(), NAME.encode(), 1))
