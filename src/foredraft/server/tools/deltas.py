"""The output of a tool parser: pieces of text and of calls in order, and the answer that they form."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the answer's text. Never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """A piece of the model's reasoning before it answers, if its format separates it. Never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """The start of a call. `index` counts the answer's calls from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    """A piece of the JSON text of a call's arguments. Never empty."""

    index: int
    json_text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The end of a call with complete arguments. A call that is malformed or cut off has no end."""

    index: int


Delta: TypeAlias = TextDelta | ReasoningDelta | CallStart | ArgumentsDelta | CallEnd


@dataclass(frozen=True, slots=True)
class Call:
    """A call; `arguments` is JSON text, as in OpenAI's API. Not `whole`: malformed or cut off."""

    id: str
    name: str
    arguments: str
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """The sum of all deltas of an answer."""

    text: str
    calls: tuple[Call, ...]
    reasoning: str = ""


def joined(deltas: Iterable[Delta]) -> list[Delta]:
    """The same deltas, with adjacent ones of a kind merged."""
    whole: list[Delta] = []
    for _, neighbours in groupby(deltas, _kind):
        first, *others = neighbours
        if others and isinstance(first, TextDelta | ReasoningDelta):
            first = replace(first, text="".join(_piece(delta) for delta in (first, *others)))
        elif others and isinstance(first, ArgumentsDelta):
            first = replace(first, json_text="".join(_piece(delta) for delta in (first, *others)))
        whole.append(first)
    return whole


def _kind(delta: Delta) -> tuple[type[Delta], int]:
    return type(delta), 0 if isinstance(delta, TextDelta | ReasoningDelta) else delta.index


def _piece(delta: Delta) -> str:
    match delta:
        case TextDelta(text) | ReasoningDelta(text):
            return text
        case ArgumentsDelta(_, json_text):
            return json_text
        case _:
            return ""


def collect(deltas: Iterable[Delta]) -> Answer:
    """Collect a stream of deltas into an answer."""
    text: list[str] = []
    reasoning: list[str] = []
    starts: list[CallStart] = []
    arguments: list[list[str]] = []
    whole: set[int] = set()
    for delta in deltas:
        match delta:
            case TextDelta(piece):
                text.append(piece)
            case ReasoningDelta(piece):
                reasoning.append(piece)
            case CallStart():
                starts.append(delta)
                arguments.append([])
            case ArgumentsDelta(index, piece):
                arguments[index].append(piece)
            case CallEnd(index):
                whole.add(index)
    calls = (
        Call(start.id, start.name, "".join(pieces), start.index in whole)
        for start, pieces in zip(starts, arguments, strict=True)
    )
    return Answer("".join(text), tuple(calls), "".join(reasoning))


class DeltaLog:
    """Buffer of outgoing deltas: numbers the calls and merges adjacent deltas."""

    def __init__(self, new_id: Callable[[], str]) -> None:
        self._new_id = new_id
        self._waiting: list[Delta] = []
        self.calls = 0

    def text(self, text: str) -> None:
        """Add text; an empty string has no effect."""
        if text:
            self._waiting.append(TextDelta(text))

    def reasoning(self, text: str) -> None:
        """Add reasoning; an empty string has no effect."""
        if text:
            self._waiting.append(ReasoningDelta(text))

    def start(self, name: str) -> None:
        """Start the next call."""
        self._waiting.append(CallStart(self.calls, self._new_id(), name))
        self.calls += 1

    def arguments(self, json_text: str) -> None:
        """Add to the arguments of the latest call."""
        if json_text:
            self._waiting.append(ArgumentsDelta(self.calls - 1, json_text))

    def end(self) -> None:
        """End the latest call, which is complete."""
        self._waiting.append(CallEnd(self.calls - 1))

    def drain(self) -> list[Delta]:
        """Return and clear the deltas, with adjacent ones of a kind merged."""
        waiting, self._waiting = self._waiting, []
        return joined(waiting)
