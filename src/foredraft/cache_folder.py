"""The user's cache folder, and the one-time move of files stored under the project's former name."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path

import platformdirs

NAME = "foredraft"
FORMER_NAME = "foretoken"
"""The project's name until November 2026, now that of another published package."""

_OURS = ("models", "store", "profiles", "probes", "prefixes", "history")
"""Entries to move. The folder may also belong to the other package, whose files stay."""

_TAGGED = ("store/suffix-*.bin", "profiles/*.json")
"""Files to keep whose first bytes name the project. Other such files are measured or computed again."""
_HEAD = 64

_log = logging.getLogger(__name__)


def default_cache_dir() -> Path:
    """The user's cache folder for Foredraft; it may not exist yet."""
    folder = Path(platformdirs.user_cache_dir(NAME, appauthor=False))
    move_former(Path(platformdirs.user_cache_dir(FORMER_NAME, appauthor=False)), folder)
    return folder


def move_former(former: Path, folder: Path) -> None:
    """Move this project's entries of `former` to `folder`, except existing names, and log one line about
    it.
    """
    if not any((former / name).exists() for name in _OURS):
        return
    _retag(former)
    moved = [name for name in _OURS if _move(former / name, folder / name)]
    with suppress(OSError):
        former.rmdir()  # fails if something stayed
    if moved:
        _log.warning("The project has a new name: %s moved from %s to %s.", ", ".join(moved), former, folder)


def _move(entry: Path, target: Path) -> bool:
    if target.exists() or not entry.exists():
        return False
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        entry.rename(target)
    except OSError:  # another process moved it, or permissions forbid it: the entry stays where it is
        return False
    return True


def _retag(folder: Path) -> None:
    for pattern in _TAGGED:
        for path in folder.glob(pattern):
            with suppress(OSError), path.open("r+b") as file:
                head = file.read(_HEAD)
                file.seek(0)
                file.write(head.replace(FORMER_NAME.encode(), NAME.encode(), 1))
