"""Speculation gives way where requests fill the forward, and is back within 10 rounds when the load falls."""

from __future__ import annotations

import random

import pytest

from foredraft.bench.curves import Curve
from foredraft.bench.trace import Trace
from foredraft.engine.engine import Engine
from foredraft.types import FinishEvent, TokenEvent
from matrix import matrix
from virtual_time import (
    CURVES,
    CountingModel,
    ask,
    copying_trace,
    curve,
    noise,
    trace_set,
    virtual_engine,
)

CLIFF = Curve("cliff", {1: 1.0, 8: 1.2, 9: 6.0, 64: 40.0}, 10.0)
"""Eight rows cost little more than one, a ninth five times as much: no room for drafts of eight requests."""

EVERY_CURVE = [*map(curve, CURVES), CLIFF]
WITHIN = 10
OTHERS = 7
ALONE = 300
"""Tokens of the long answer that are left when the others are finished."""


def noisy(length: int, rng: random.Random, name: str) -> Trace:
    return Trace(name, "noise", noise(50, rng), noise(length, rng))


def rounds(engine: Engine, model: CountingModel, *, finished: int) -> list[int]:
    """Rows of each round until so many more requests are finished."""
    first, ended = len(model.sizes), 0
    while ended < finished:
        assert not engine.idle, "a request ended too early"
        ended += sum(isinstance(event, FinishEvent) for event in engine.step())
    return model.sizes[first:]


def committed(engine: Engine, *, at_least: int) -> int:
    """Go on for so many tokens; returns how many there were in the end."""
    count = 0
    while count < at_least:
        assert not engine.idle, "the request ended too early"
        count += sum(isinstance(event, TokenEvent) for event in engine.step())
    return count


def seconds_a_token(engine: Engine, model: CountingModel) -> float:
    began = model.seconds
    count = committed(engine, at_least=400)
    return (model.seconds - began) / count


def resumed_after(sizes: list[int]) -> int:
    """Rounds of one request before the first in which something is verified."""
    return next((i for i, rows in enumerate(sizes) if rows > 1), len(sizes))


@matrix(
    strength=1,
    shape=EVERY_CURVE,
    busy=[30, 400],
    ids={"shape": lambda shape: shape.name, "busy": ["short load", "long load"]},
)
def test_it_is_back_within_ten_rounds(shape: Curve, busy: int) -> None:
    """All copy. The engine begins under load: it may never have drafted when one request is left alone."""
    rng = random.Random(busy)
    traces = [copying_trace(busy + ALONE, rng), *(copying_trace(busy, rng, str(n)) for n in range(OTHERS))]
    with virtual_engine(trace_set(traces), shape, "auto", sequences=1 + OTHERS) as (engine, model):
        for trace in traces:
            ask(engine, trace)
        rounds(engine, model, finished=OTHERS)
        left = rounds(engine, model, finished=1)
    assert resumed_after(left) < WITHIN
    assert len(left) < ALONE, "and gains"


@matrix(
    strength=1,
    shape=EVERY_CURVE,
    busy=[30, 400],
    ids={"shape": lambda shape: shape.name, "busy": ["short load", "long load"]},
)
def test_it_is_back_where_nothing_could_be_drafted_under_load(shape: Curve, busy: int) -> None:
    """A request copies, says as much noise as the seven others, and copies again when they are gone."""
    rng = random.Random(busy)
    passages = [noise(200, rng), noise(ALONE, rng)]
    long = Trace("long", "", sum(passages, ()), passages[0] + noise(busy, rng) + passages[1])
    traces = [long, *(noisy(busy, rng, str(n)) for n in range(OTHERS))]
    with virtual_engine(trace_set(traces), shape, "auto", sequences=1 + OTHERS) as (engine, model):
        ask(engine, long)
        committed(engine, at_least=200)
        for trace in traces[1:]:
            ask(engine, trace)
        rounds(engine, model, finished=OTHERS)
        left = rounds(engine, model, finished=1)
    assert resumed_after(left) < WITHIN
    assert len(left) < ALONE, "and gains"


def test_a_full_forward_has_no_room_for_drafts() -> None:
    rng = random.Random(2)
    traces = [copying_trace(200, rng, str(n)) for n in range(1 + OTHERS)]
    with virtual_engine(trace_set(traces), CLIFF, "auto", sequences=1 + OTHERS) as (engine, model):
        for trace in traces:
            ask(engine, trace)
        under_load = rounds(engine, model, finished=1)
    assert under_load.count(1 + OTHERS) >= 0.95 * len(under_load)


@pytest.mark.parametrize("shape", EVERY_CURVE, ids=lambda shape: shape.name)
def test_what_was_known_before_the_load_is_not_forgotten(shape: Curve) -> None:
    """Alone, then seven others come and go, then alone again: it is as fast as it was."""
    rng = random.Random(4)
    long = copying_trace(3000, rng)
    traces = [long, *(noisy(20, rng, str(n)) for n in range(OTHERS))]
    with virtual_engine(trace_set(traces), shape, "auto", sequences=1 + OTHERS) as (engine, model):
        ask(engine, long)
        committed(engine, at_least=400)
        before = seconds_a_token(engine, model)
        for trace in traces[1:]:
            ask(engine, trace)
        rounds(engine, model, finished=OTHERS)
        first = len(model.sizes)
        committed(engine, at_least=WITHIN)
        assert resumed_after(model.sizes[first:]) < WITHIN
        assert seconds_a_token(engine, model) < 1.1 * before


def test_the_text_is_the_same_under_any_load() -> None:
    """Drafters that were not asked for a while go on from where the text is now."""
    rng = random.Random(6)
    traces = [copying_trace(400, rng), *(copying_trace(120, rng, str(n)) for n in range(OTHERS))]
    with virtual_engine(trace_set(traces), CLIFF, "auto", sequences=1 + OTHERS) as (engine, _):
        done = engine.run([ask(engine, trace) for trace in traces])
    assert [completion.tokens for completion in done] == [trace.output for trace in traces]
    drafted = done[0].timings
    assert drafted.draft_n_accepted >= 0.9 * drafted.draft_n > 0
