"""Figures and the use of keys in a SQLite file: aggregates only, bounded in size.

Several servers may share the file: what each has to add is merged into what is there, in one transaction.
Each change has a number, so that a server also learns what others have added.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from foredraft.server.console.figures import Figures

FILE_NAME = "server.sqlite"

APPLICATION = 0x466F7265
"""SQLite's application_id of our files: "Fore"."""

FORMAT = 1

BUSY_S = 2.0
"""Seconds to wait for another server that is writing."""

MOST_KEYS = 1000
"""Keys whose use is kept: those that were used last."""

Row = tuple[int, int]
"""(step in seconds, Unix time of its begin)"""

_SCHEMA = f"""
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {FORMAT};
CREATE TABLE figures (step INTEGER, at INTEGER, change INTEGER, data TEXT, PRIMARY KEY (step, at));
CREATE INDEX changed ON figures (change);
CREATE TABLE usage (key TEXT PRIMARY KEY, requests INTEGER, tokens INTEGER, last_used REAL);
CREATE TABLE state (name TEXT PRIMARY KEY, value REAL);
"""

logger = logging.getLogger(__name__)


class Level(NamedTuple):
    """Rows of `step` seconds, of which the last `keep` are kept."""

    step: int
    keep: int


LEVELS = (Level(30, 130), Level(600, 150), Level(3600, 210), Level(86400, 4000))
"""The last 65 minutes, 25 hours, 8 days, and 11 years: some megabytes at most. Of more rows those nearest to
now are kept, before it and after: neither a clock that is ahead nor one that is behind erases what was.
"""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a key was used for: answers, generated tokens, and the Unix time of the last one."""

    requests: int = 0
    tokens: int = 0
    last_used: float | None = None

    def plus(self, other: Usage) -> Usage:
        """Both together."""
        used = [at for at in (self.last_used, other.last_used) if at is not None]
        return Usage(self.requests + other.requests, self.tokens + other.tokens, max(used) if used else None)


@dataclass(slots=True)
class Changes:
    """Rows and uses: to be added to the file, or as they are there now. `since`: Unix time of the first."""

    rows: dict[Row, Figures] = field(default_factory=dict)
    usage: dict[str, Usage] = field(default_factory=dict)
    since: float | None = None

    def __bool__(self) -> bool:
        return bool(self.rows or self.usage)


class FigureStore:
    """The file. Its methods block, one after another."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection: sqlite3.Connection | None = None
        self._inode: int | None = None
        self._seen = 0
        self._one = threading.Lock()

    def exchange(self, changes: Changes, now: float) -> Changes:
        """Add changes, drop rows beyond `LEVELS`, and return the rows that have changed since the last time,
        by whomever, and all uses. `now`: Unix time.

        Raises OSError and sqlite3.Error; then nothing was added. A file that is not ours or is damaged is
        moved aside first.
        """
        with self._one:
            try:
                return self._exchange(changes, now)
            except sqlite3.OperationalError:
                self._close()
                raise
            except sqlite3.DatabaseError as error:
                self._close()
                self._move_aside(str(error))
                return self._exchange(changes, now)

    def close(self) -> None:
        """Close the file."""
        with self._one:
            self._close()

    def _close(self) -> None:
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None
            self._seen = 0

    def _exchange(self, changes: Changes, now: float) -> Changes:
        connection = self._open()
        with _transaction(connection):
            seen = self._seen
            [(last,)] = connection.execute("SELECT coalesce(max(change), 0) FROM figures")
            change = max(int(last), seen) + 1
            _write(connection, changes, change)
            connection.execute("INSERT OR IGNORE INTO state VALUES ('since', ?)", [changes.since or now])
            _prune(connection, now)
            found = _read(connection, seen)
        self._seen = change
        return found

    def _open(self) -> sqlite3.Connection:
        if self._connection is not None and self._inode != _inode(self.path):
            self._close()  # it was erased, or replaced
        if self._connection is None:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
            made = sqlite3.connect(self.path, BUSY_S, isolation_level=None, check_same_thread=False)
            try:
                _set_up(made)
                made.execute("PRAGMA journal_mode = WAL")
                made.execute("PRAGMA synchronous = NORMAL")
            except BaseException:
                made.close()
                raise
            self._connection, self._inode = made, _inode(self.path)
        return self._connection

    def _move_aside(self, why: str) -> None:
        aside = self.path.with_name(self.path.name + ".corrupt")
        self.path.replace(aside)
        for ending in ("-wal", "-shm"):  # they belong to it
            with suppress(FileNotFoundError):
                self.path.with_name(self.path.name + ending).replace(f"{aside}{ending}")
        logger.warning("%s cannot be used (%s): moved to %s; a new one is begun.", self.path, why, aside.name)


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _set_up(connection: sqlite3.Connection) -> None:
    """Make the tables in an empty file. Raises DatabaseError if it is another program's, and OperationalError
    if it is of a later version.
    """
    with _transaction(connection):
        [(application,)] = connection.execute("PRAGMA application_id")
        [(version,)] = connection.execute("PRAGMA user_version")
        [(tables,)] = connection.execute("SELECT count(*) FROM sqlite_master")
        if application == APPLICATION and version > FORMAT:
            raise sqlite3.OperationalError("it was written by a later version of Foredraft")
        if tables and (application, version) != (APPLICATION, FORMAT):
            raise sqlite3.DatabaseError("it is not a file of this program's figures")
        if not tables:
            for statement in _SCHEMA.split(";"):
                connection.execute(statement)


def _write(connection: sqlite3.Connection, changes: Changes, change: int) -> None:
    for (step, at), figures in changes.rows.items():
        merged = Figures()
        merged.merge(figures)
        for (text,) in connection.execute("SELECT data FROM figures WHERE step = ? AND at = ?", [step, at]):
            with suppress(ValueError):
                merged.merge(Figures.of(text))
        connection.execute(
            "INSERT OR REPLACE INTO figures VALUES (?, ?, ?, ?)", [step, at, change, merged.text()]
        )
    for key, usage in changes.usage.items():
        connection.execute(
            "INSERT INTO usage VALUES (?1, ?2, ?3, ?4) ON CONFLICT (key) DO UPDATE SET "
            "requests = requests + ?2, tokens = tokens + ?3, last_used = max(last_used, ?4)",
            [key, usage.requests, usage.tokens, usage.last_used or 0.0],
        )


def _prune(connection: sqlite3.Connection, now: float) -> None:
    for step, keep in LEVELS:
        connection.execute(
            "DELETE FROM figures WHERE step = ?1 AND at NOT IN "
            "(SELECT at FROM figures WHERE step = ?1 ORDER BY abs(at - ?2) LIMIT ?3)",
            [step, now, keep],
        )
    connection.execute(
        "DELETE FROM usage WHERE key NOT IN (SELECT key FROM usage ORDER BY last_used DESC LIMIT ?)",
        [MOST_KEYS],
    )


def _read(connection: sqlite3.Connection, seen: int) -> Changes:
    found = Changes()
    for step, at, text in connection.execute("SELECT step, at, data FROM figures WHERE change > ?", [seen]):
        with suppress(ValueError):
            found.rows[int(step), int(at)] = Figures.of(text)
    for key, requests, tokens, used in connection.execute("SELECT * FROM usage"):
        found.usage[str(key)] = Usage(int(requests), int(tokens), float(used))
    for (since,) in connection.execute("SELECT value FROM state WHERE name = 'since'"):
        found.since = float(since)
    return found


def merged(figures: Iterable[Figures]) -> Figures:
    """All of them together."""
    whole = Figures()
    for each in figures:
        whole.merge(each)
    return whole
