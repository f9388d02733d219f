"""Searching folders with arbitrary content: bounded, and skipping what cannot be read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import TypeAlias

MOST_ENTRIES = 10_000
"""Maximum files and folders to look at: at most a second if all of them were models."""

DEEPEST = 8
"""Maximum depth of folders."""

ReportSkipped: TypeAlias = Callable[[str], None]
"""Called with a sentence about something that was left out, and why."""


def no_report(_message: str) -> None:
    """Ignore the message."""


class Survey:
    """One search of a place. Each folder is entered once, so that links cannot form a cycle; hidden files and
    folders are skipped.
    """

    def __init__(self, place: Path, report: ReportSkipped = no_report) -> None:
        self.place = place
        self.report = report
        self._left = MOST_ENTRIES
        self._entered: set[tuple[int, int]] = set()

    def files(self, folder: Path, *, deepest: int = DEEPEST) -> Iterator[Path]:
        """All entries but folders below this one, down to `deepest` levels."""
        folders = []
        for entry in self._entries(folder):
            if _is_dir(entry):
                folders.append(Path(entry.path))
            else:
                yield Path(entry.path)
        for below in folders if deepest else ():
            yield from self.files(below, deepest=deepest - 1)

    def folders(self, folder: Path) -> list[Path]:
        """The folders in this one."""
        return [Path(entry.path) for entry in self._entries(folder) if _is_dir(entry)]

    def _entries(self, folder: Path) -> list[os.DirEntry[str]]:
        """The entries by name. Empty if there is no such folder, it cannot be read, or was read before."""
        if not self._left:
            return []
        try:
            status = folder.stat()
            if (status.st_dev, status.st_ino) in self._entered:
                return []
            self._entered.add((status.st_dev, status.st_ino))
            with os.scandir(folder) as found:
                entries = list(islice(found, self._left))
        except FileNotFoundError:
            return []
        except OSError as error:
            self.report(f"{folder} was left out: {error.strerror or error}.")
            return []
        self._left -= len(entries)
        if not self._left:
            self.report(f"Only {MOST_ENTRIES:,} files and folders of {self.place} were searched.")
        return sorted((entry for entry in entries if entry.name[0] != "."), key=lambda entry: entry.name)


def _is_dir(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to a place without permission
        return False
