"""Deltas joined on their way out, and added up to an answer."""

from __future__ import annotations

from foredraft.server.tools.deltas import (
    Answer,
    ArgumentsDelta,
    Call,
    CallStart,
    Delta,
    DeltaLog,
    TextDelta,
    collect,
)


def test_neighbours_of_a_kind_are_one() -> None:
    log = DeltaLog(lambda: "id")
    for piece in ("a", "", "b"):
        log.text(piece)
    log.start("f")
    log.arguments("{")
    log.arguments("")
    log.arguments("}")
    log.start("g")
    log.arguments("{}")
    log.text("c")
    assert log.drain() == [
        TextDelta("ab"),
        CallStart(0, "id", "f"),
        ArgumentsDelta(0, "{}"),
        CallStart(1, "id", "g"),
        ArgumentsDelta(1, "{}"),
        TextDelta("c"),
    ]
    assert log.drain() == []


def test_collect_adds_up() -> None:
    deltas: list[Delta] = [
        TextDelta("a"),
        CallStart(0, "x", "f"),
        ArgumentsDelta(0, "{"),
        CallStart(1, "y", "g"),
        ArgumentsDelta(0, "}"),
        TextDelta("b"),
    ]
    assert collect(deltas) == Answer("ab", (Call("x", "f", "{}"), Call("y", "g", "")))
