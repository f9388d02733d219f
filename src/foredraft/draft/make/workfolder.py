"""The folder in which a head is made: what each stage has done so far, so that it goes on where it was
interrupted or killed.

`recipe.json` says for which model it is; `answers.jsonl`, `rows/`, `checkpoint.pt` are the stages' own;
`spent.json` has the seconds of each, `head.gguf` is the head that was made, and `made.json` what it was made
of, so that the same command has nothing to do. One process uses it at a time.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from foredraft.draft.make.store import RowStore
from foredraft.errors import CapacityError, ConfigError
from foredraft.files import lock, write_atomically

VERSION = 1

ROWS = "rows"

HEAD = "head.gguf"
"""The head that was made, as long as it is not installed."""

LARGEST = 8_000_000_000
"""Bytes of rows at most."""

SHARE = 0.5
"""Of the free space that rows may take."""

LEAST_ROWS = 20_000
"""From fewer nothing useful is learned."""


class WorkFolder:
    """`recipe` must be the same in every run, or the folder holds another model's data."""

    def __init__(self, path: Path, recipe: dict[str, Any]) -> None:
        """Raises ConfigError for a folder of another recipe, or one that cannot be written."""
        self.path = path
        self.answers = path / "answers.jsonl"
        self.rows = path / ROWS
        self.checkpoint = path / "checkpoint.pt"
        self.made = path / "made.json"
        self._spent = path / "spent.json"
        self._times: dict[str, float] | None = None
        recipe = {"version": VERSION, **recipe}
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            found = _read(path / "recipe.json")
            if not found:
                write_atomically(path / "recipe.json", json.dumps(recipe).encode() + b"\n")
        except OSError as error:
            raise ConfigError(
                f"The work folder {path} cannot be used: {error.strerror}.",
                hint="Name another: --work FOLDER",
            ) from None
        if found and found != recipe:
            raise ConfigError(
                f"{path} holds the beginnings of a head of {found.get('target', 'another model')}.",
                hint="Name another folder (--work FOLDER), or remove this one.",
            )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes out. Raises ConfigError if one is in it."""
        with (self.path / "lock").open("w") as file:
            try:
                lock(file.fileno(), wait=False)
            except OSError:
                raise ConfigError(
                    f"Another process is making a head in {self.path}.", hint="Wait for it, or stop it."
                ) from None
            yield

    def most_rows(self, width: int) -> int:
        """How many rows of features may be kept here, those that are here included. Raises CapacityError
        where that is too few to learn from.
        """
        each = RowStore.row_bytes(width)
        present = sum(file.stat().st_size for file in self.rows.glob("*")) if self.rows.exists() else 0
        free = _free(self.path)
        rows = int(min(LARGEST, present + SHARE * free)) // each
        if rows < LEAST_ROWS:
            raise CapacityError(
                f"There is too little space in {self.path}: {size(free)} are free, and "
                f"{size(int(LEAST_ROWS * each / SHARE))} are needed.",
                hint="Free some, or name a folder on another disk: --work FOLDER",
            )
        return rows

    def spent(self, stage: str | None = None) -> float:
        """Seconds of a stage so far, or of all of them, in all runs."""
        times = self._all_times()
        return sum(times.values()) if stage is None else times.get(stage, 0.0)

    def spend(self, stage: str, seconds: float) -> None:
        """Add seconds to a stage. Raises OSError."""
        self._times = {**self._all_times(), stage: self.spent(stage) + seconds}
        write_atomically(self._spent, json.dumps(self._times).encode() + b"\n")

    def note(self, result: dict[str, Any] | None) -> None:
        """Keep what a head was made of; None: none is made any more. Raises OSError."""
        if result is None:
            self.made.unlink(missing_ok=True)
        else:
            write_atomically(self.made, json.dumps(result).encode() + b"\n")

    def noted(self) -> dict[str, Any]:
        """What was kept of the head that was made last; an empty object if there is none."""
        return _read(self.made)

    def _all_times(self) -> dict[str, float]:
        """Seconds by stage; read once, as they are asked for with every token."""
        if self._times is None:
            found = _read(self._spent).items()
            self._times = {name: float(value) for name, value in found if isinstance(value, int | float)}
        return self._times


def drop_rows(folder: Path) -> None:
    """Remove the rows of a work folder, which are nearly all of it. Another run reads the answers again."""
    shutil.rmtree(folder / ROWS, ignore_errors=True)


def size(count: int) -> str:
    """Bytes, for people: "20 MB", "1.5 GB"."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def _free(path: Path) -> int:
    """Bytes that are free where a folder is."""
    return shutil.disk_usage(path).free


def _read(path: Path) -> dict[str, Any]:
    """A file's JSON object; an empty one if there is none."""
    try:
        value = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
