"""What a tool parser gives: pieces of text and of calls, in order, and the answer they add up to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More of the answer's text. Never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call begins. `index` counts the answer's calls from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    """More of the JSON text of a call's arguments. Never empty."""

    index: int
    json_text: str


Delta: TypeAlias = TextDelta | CallStart | ArgumentsDelta


@dataclass(frozen=True, slots=True)
class Call:
    """A whole call; `arguments` is JSON text, as in OpenAI's API (cut short if the answer was)."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Answer:
    """All deltas of an answer added up."""

    text: str
    calls: tuple[Call, ...]


def joined(deltas: Iterable[Delta]) -> list[Delta]:
    """The same, neighbours of a kind as one."""
    whole: list[Delta] = []
    for _, neighbours in groupby(deltas, _kind):
        first, *others = neighbours
        if others and isinstance(first, TextDelta):
            first = TextDelta("".join(_piece(delta) for delta in (first, *others)))
        elif others and isinstance(first, ArgumentsDelta):
            first = replace(first, json_text="".join(_piece(delta) for delta in (first, *others)))
        whole.append(first)
    return whole


def _kind(delta: Delta) -> tuple[type[Delta], int]:
    return type(delta), 0 if isinstance(delta, TextDelta) else delta.index


def _piece(delta: Delta) -> str:
    if isinstance(delta, CallStart):
        return ""
    return delta.text if isinstance(delta, TextDelta) else delta.json_text


def collect(deltas: Iterable[Delta]) -> Answer:
    """The answer that a stream of deltas adds up to."""
    text: list[str] = []
    starts: list[CallStart] = []
    arguments: list[list[str]] = []
    for delta in deltas:
        if isinstance(delta, TextDelta):
            text.append(delta.text)
        elif isinstance(delta, CallStart):
            starts.append(delta)
            arguments.append([])
        else:
            arguments[delta.index].append(delta.json_text)
    calls = (
        Call(start.id, start.name, "".join(pieces)) for start, pieces in zip(starts, arguments, strict=True)
    )
    return Answer("".join(text), tuple(calls))


class DeltaLog:
    """Deltas on their way out: numbers the calls and joins neighbours that are one."""

    def __init__(self, new_id: Callable[[], str]) -> None:
        self._new_id = new_id
        self._waiting: list[Delta] = []
        self.calls = 0

    def text(self, text: str) -> None:
        """Add text; the empty string is nothing."""
        if text:
            self._waiting.append(TextDelta(text))

    def start(self, name: str) -> None:
        """Begin the next call."""
        self._waiting.append(CallStart(self.calls, self._new_id(), name))
        self.calls += 1

    def arguments(self, json_text: str) -> None:
        """Add to the arguments of the call begun last."""
        if json_text:
            self._waiting.append(ArgumentsDelta(self.calls - 1, json_text))

    def drain(self) -> list[Delta]:
        """Everything since the last time, neighbours of a kind joined."""
        waiting, self._waiting = self._waiting, []
        return joined(waiting)
