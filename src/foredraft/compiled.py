"""What runs compiled, and the guard against what was compiled from another source.

`scripts/compile_parts.py` compiles the planner with mypyc, and with Cython what it and the drafters do for
each token: the same sources, with the same decisions and drafts, in a fraction of the time. In each folder
it leaves a list with the hash of each source. Python prefers a compiled module to its source, so somebody who
edits the source would see no change: where one of the hashes does not fit, all modules of that folder are
taken from source.
"""

from __future__ import annotations

import hashlib
import json
import sys
from enum import StrEnum
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, SourceFileLoader
from pathlib import Path

PLANNER = Path(__file__).parent / "planner"
TABLES = PLANNER / "tables"
LOOKUP = Path(__file__).parent / "drafters" / "lookup"
PARTS = (PLANNER, TABLES, LOOKUP)
"""The folders of which modules are compiled."""
LIST = "compiled.json"


class State(StrEnum):
    """What a folder's modules run from."""

    COMPILED = "compiled"
    SOURCE = "source"
    """Nothing was compiled, or the source was asked for."""
    STALE = "stale"
    """The source, because it is not the one that was compiled."""


_asked_for_source = False


def states() -> dict[str, State]:
    """What each of `PARTS` runs from, or will when it is imported, by the folder's name."""
    return {folder.name: state(folder) for folder in PARTS}


def state(folder: Path) -> State:
    """What a folder's modules run from. A list that cannot be read is a stale one."""
    try:
        listed = json.loads((folder / LIST).read_bytes())
    except FileNotFoundError:
        return State.SOURCE
    except (OSError, ValueError):
        return State.STALE
    if _asked_for_source:
        return State.SOURCE
    listed = listed if isinstance(listed, dict) else {}
    same = bool(listed) and all(listed[name] == fingerprint(folder / name) for name in listed)
    return State.COMPILED if same else State.STALE


def fingerprint(source: Path) -> str:
    """A source file's hash, nothing if it cannot be read. Line ends do not count."""
    try:
        text = source.read_bytes()
    except OSError:
        return ""
    return hashlib.sha256(text.replace(b"\r\n", b"\n")).hexdigest()


def choose(folder: Path) -> None:
    """Have the modules of a folder imported from source unless compiled ones fit. Before any is imported."""
    if state(folder) is State.STALE:
        _skip_compiled(folder)


def use_source() -> None:
    """Have all parts imported from source in any case. Before they are imported."""
    global _asked_for_source  # noqa: PLW0603 - a process imports a module once
    _asked_for_source = True
    for folder in PARTS:
        _skip_compiled(folder)


def _skip_compiled(folder: Path) -> None:
    finder = FileFinder(str(folder), (SourceFileLoader, SOURCE_SUFFIXES))
    sys.path_importer_cache[str(folder)] = finder
