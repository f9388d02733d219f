"""Workloads: prompts by category, from the set that ships or from any JSONL file of the same form.

One JSON object a line: `id`, `category`, and `turns`, the user's messages, first turn first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import zip_longest
from pathlib import Path
from typing import Any

from foredraft.errors import ConfigError

SHIPPED = "prompts.jsonl"
_FORM = 'A row is {"id": "chat/1", "category": "chat", "turns": ["…"]}, one JSON object a line.'


@dataclass(frozen=True, slots=True)
class PromptCase:
    """One conversation to measure: what the user says, turn after turn."""

    id: str
    category: str
    turns: tuple[str, ...]

    def turn_id(self, turn: int) -> str:
        """The name of a turn's answer in results: the first one's is the case's own."""
        return self.id if turn == 0 else f"{self.id}#{turn + 1}"


def shipped_prompts() -> list[PromptCase]:
    """The prompts that come with Foredraft, all written for it."""
    text = files("foredraft.bench").joinpath(SHIPPED).read_text(encoding="utf-8")
    return [case for _, case in _cases(text, SHIPPED)]


def load_prompts(path: Path | None = None) -> list[PromptCase]:
    """Prompts of a JSONL file, of all of a folder's, or the ones that ship.

    Raises ConfigError that names the file, the line and what is wrong with it.
    """
    if path is None:
        return shipped_prompts()
    cases: list[PromptCase] = []
    places: dict[str, str] = {}
    for file in _files(path):
        for place, case in _cases(_read(file), str(file)):
            if case.id in places:
                raise ConfigError(
                    f"{place}: the id {case.id!r} is taken already, in {places[case.id]}.",
                    hint="Results are reported by id: give every prompt its own.",
                )
            places[case.id] = place
            cases.append(case)
    if not cases:
        raise ConfigError(f"There are no prompts in {path}.", hint=_FORM)
    return cases


def select(
    cases: Sequence[PromptCase], *, categories: Sequence[str] = (), limit: int = 0
) -> list[PromptCase]:
    """The cases of `categories` (all if empty), and of those at most `limit` (all if 0), spread evenly.

    Raises ConfigError for a category that no case has.
    """
    present = list(dict.fromkeys(case.category for case in cases))
    for category in categories:
        if category not in present:
            raise ConfigError(
                f"No prompt has the category {category!r}.", hint=f"There are: {', '.join(present)}."
            )
    chosen = [case for case in cases if not categories or case.category in categories]
    return _spread(chosen, limit) if limit else chosen


def _spread(cases: Sequence[PromptCase], limit: int) -> list[PromptCase]:
    """`limit` cases: the first of each category, then the second of each, and so on."""
    groups: dict[str, list[PromptCase]] = {}
    for case in cases:
        groups.setdefault(case.category, []).append(case)
    ranks = zip_longest(*groups.values())
    return [case for rank in ranks for case in rank if case is not None][:limit]


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        found = sorted(path.glob("*.jsonl"))
        if not found:
            raise ConfigError(f"There is no .jsonl file in {path}.", hint=_FORM)
        return found
    if not path.exists():
        raise ConfigError(f"There is no prompt file {path}.")
    return [path]


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"Cannot read the prompt file {file}: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"The prompt file {file} is not UTF-8 text.") from None


def _cases(text: str, origin: str) -> Iterator[tuple[str, PromptCase]]:
    """The rows of a file, each with its place in it for messages."""
    # Not splitlines(): a JSON string may hold a line separator (U+2028) as it is.
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            place = f"{origin}, line {number}"
            yield place, _case(line, place)


def _case(line: str, place: str) -> PromptCase:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{place}: this is not JSON ({error.msg}).", hint=_FORM) from None
    if not isinstance(row, dict):
        raise ConfigError(f"{place}: a JSON object is expected.", hint=_FORM)
    turns = row.get("turns")
    if not isinstance(turns, list) or not turns or not all(isinstance(t, str) and t.strip() for t in turns):
        raise ConfigError(f"{place}: 'turns' must be a list of texts that are not empty.", hint=_FORM)
    return PromptCase(_text(row, "id", place), _text(row, "category", place), tuple(turns))


def _text(row: dict[str, Any], key: str, place: str) -> str:
    value = row.get(key)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{place}: {key!r} must be a text that is not empty.", hint=_FORM)
    return value
