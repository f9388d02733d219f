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
class ReasoningDelta:
    """More of what the model thinks before it answers, where its form sets that apart. Never empty."""

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


@dataclass(frozen=True, slots=True)
class CallEnd:
    """A call is whole: its arguments are all of a JSON object. One that breaks or is cut short has no end."""

    index: int


Delta: TypeAlias = TextDelta | ReasoningDelta | CallStart | ArgumentsDelta | CallEnd


@dataclass(frozen=True, slots=True)
class Call:
    """A call; `arguments` is JSON text, as in OpenAI's API. Not `whole`: it broke or was cut."""

    id: str
    name: str
    arguments: str
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """All deltas of an answer added up."""

    text: str
    calls: tuple[Call, ...]
    reasoning: str = ""


def joined(deltas: Iterable[Delta]) -> list[Delta]:
    """The same, neighbours of a kind as one."""
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
    """The answer that a stream of deltas adds up to."""
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
    """Deltas on their way out: numbers the calls and joins neighbours that are one."""

    def __init__(self, new_id: Callable[[], str]) -> None:
        self._new_id = new_id
        self._waiting: list[Delta] = []
        self.calls = 0

    def text(self, text: str) -> None:
        """Add text; the empty string is nothing."""
        if text:
            self._waiting.append(TextDelta(text))

    def reasoning(self, text: str) -> None:
        """Add to what the model thinks; the empty string is nothing."""
        if text:
            self._waiting.append(ReasoningDelta(text))

    def start(self, name: str) -> None:
        """Begin the next call."""
        self._waiting.append(CallStart(self.calls, self._new_id(), name))
        self.calls += 1

    def arguments(self, json_text: str) -> None:
        """Add to the arguments of the call begun last."""
        if json_text:
            self._waiting.append(ArgumentsDelta(self.calls - 1, json_text))

    def end(self) -> None:
        """The call begun last is whole."""
        self._waiting.append(CallEnd(self.calls - 1))

    def drain(self) -> list[Delta]:
        """Everything since the last time, neighbours of a kind joined."""
        waiting, self._waiting = self._waiting, []
        return joined(waiting)
