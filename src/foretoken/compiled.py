"""Whether the planner runs compiled, and the guard against a compiled planner of another source.

`scripts/compile_planner.py` compiles the modules of `planner/` with mypyc: the same source, with the same
decisions, in about two thirds of the time. It leaves a list of them with the hash of each source. Python
prefers a compiled module to its source, so somebody who edits the source would see no change: where one of
the hashes does not fit, all modules are taken from source.
"""

from __future__ import annotations

import hashlib
import json
import sys
from enum import StrEnum
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, SourceFileLoader
from pathlib import Path

PLANNER = Path(__file__).parent / "planner"
LIST = "compiled.json"


class State(StrEnum):
    """What the planner runs from."""

    COMPILED = "compiled"
    SOURCE = "source"
    """Nothing was compiled, or the source was asked for."""
    STALE = "stale"
    """The source, because it is not the one that was compiled."""


_asked_for_source = False


def state(planner: Path = PLANNER) -> State:
    """What the planner runs from, or will when it is imported. A list that cannot be read is a stale one."""
    try:
        listed = json.loads((planner / LIST).read_bytes())
    except FileNotFoundError:
        return State.SOURCE
    except (OSError, ValueError):
        return State.STALE
    if _asked_for_source:
        return State.SOURCE
    listed = listed if isinstance(listed, dict) else {}
    same = bool(listed) and all(listed[name] == fingerprint(planner / name) for name in listed)
    return State.COMPILED if same else State.STALE


def fingerprint(source: Path) -> str:
    """A source file's hash, nothing if it cannot be read. Line ends do not count."""
    try:
        text = source.read_bytes()
    except OSError:
        return ""
    return hashlib.sha256(text.replace(b"\r\n", b"\n")).hexdigest()


def choose(planner: Path = PLANNER) -> None:
    """Have the modules of `planner` imported from source unless compiled ones fit. Before any is imported."""
    if state(planner) is State.STALE:
        _skip_compiled(planner)


def use_source() -> None:
    """Have the planner imported from source in any case. Before it is imported."""
    global _asked_for_source  # noqa: PLW0603 - a process imports a module once
    _asked_for_source = True
    _skip_compiled(PLANNER)


def _skip_compiled(folder: Path) -> None:
    finder = FileFinder(str(folder), (SourceFileLoader, SOURCE_SUFFIXES))
    sys.path_importer_cache[str(folder)] = finder
