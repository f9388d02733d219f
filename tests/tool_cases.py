"""What tests of tool-call parsers share: feeding a parser, and cutting a text in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import count, pairwise

from foredraft.server.tools.choice import Tool
from foredraft.server.tools.deltas import Answer, Delta, collect
from foredraft.server.tools.dialect import Dialect

NAMES = ("get_weather", "add", "now")


def tools_named(names: Iterable[str] = NAMES) -> list[Tool]:
    """Functions of which nothing but the names is known."""
    return [Tool(name, parameters={}) for name in names]


def numbered() -> Callable[[], str]:
    """An id factory that counts."""
    numbers = count()
    return lambda: f"id{next(numbers)}"


def deltas(
    dialect: Dialect, pieces: Iterable[str], names: Sequence[str] = NAMES, *, limit: bool = False
) -> list[Delta]:
    """Everything a parser gives for an answer in these pieces; `limit`: the token limit has ended it."""
    parser = dialect.parser(tools_named(names), numbered())
    found = [delta for piece in pieces for delta in parser.feed(piece)]
    return [*found, *parser.finish(cut=limit)]


def read(dialect: Dialect, text: str, names: Sequence[str] = NAMES) -> Answer:
    """The answer as one text, and its calls."""
    return collect(deltas(dialect, [text], names))


def called(answer: Answer) -> list[tuple[str, str]]:
    """Names and arguments of the calls."""
    return [(call.name, call.arguments) for call in answer.calls]


def cut(text: str, cuts: Sequence[int]) -> list[str]:
    """`text` in pieces, cut at these places (taken modulo its length)."""
    edges = [0, *sorted(at % (len(text) + 1) for at in cuts), len(text)]
    return [text[start:end] for start, end in pairwise(edges)]
