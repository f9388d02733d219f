"""A drafter whose tokens take time, such as a head, beside `auto` in virtual time: asked where it brings more
than it costs, and than what the others found.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from statistics import geometric_mean

import pytest

from foredraft import Engine, SamplingParams
from foredraft.bench.charge import charge
from foredraft.bench.curves import Curve
from foredraft.bench.replay_model import ReplayModel
from foredraft.bench.trace import Trace, TraceSet, shipped_traces
from foredraft.protocols import DrafterContext, RequestView
from foredraft.registry import register_drafter, unregister_drafter
from foredraft.types import Draft, DraftLimit, Outcome
from virtual_time import curve, noise_traces, trace_set

CHANCES, WEIGHTS = (0.95, 0.6, 0.2), (0.45, 0.25, 0.3)


class Knowing:
    """It knows what comes, says with which chance each token is right, and is right as often. `scale`: of the
    chances.
    """

    name = "knowing"
    costly = True
    at_once = False

    def __init__(self, model: ReplayModel, traces: TraceSet, token_ms: float, scale: float) -> None:
        self._model, self._token_ms, self._scale = model, token_ms, scale
        self._traces = {trace.prompt: trace for trace in traces.traces}
        self._of: dict[int, Trace] = {}
        self.asked: list[tuple[str, int]] = []

    def start(self, request: RequestView) -> None:
        self._of[request.id] = self._traces[tuple(request.tokens[: request.prompt_length])]

    def draft(self, requests: Sequence[tuple[RequestView, DraftLimit]]) -> list[Draft | None]:
        return [self._one(*each) for each in requests]

    def _one(self, request: RequestView, limit: DraftLimit) -> Draft | None:
        trace, begin = self._of[request.id], len(request.tokens) - request.prompt_length
        self.asked.append((trace.id, begin))
        tokens, confidence, survival = list[int](), list[float](), 1.0
        while len(tokens) < min(limit.max_tokens, 8):
            at = begin + len(tokens)
            rng = random.Random(f"{trace.id} {at} {len(tokens)}")
            chance = rng.choices(CHANCES, WEIGHTS)[0] * self._scale * 0.95 ** len(tokens)
            if not tokens or not self.at_once:
                self._model.seconds += self._token_ms / 1e3
            survival *= chance
            if survival < limit.min_survival:
                break
            right = at < len(trace.output) and rng.random() < chance
            tokens.append(trace.output[at] if right else rng.randrange(7, 100))
            confidence.append(chance)
        return Draft(tuple(tokens), self.name, confidence=tuple(confidence)) if tokens else None

    def observe(self, request: RequestView, outcome: Outcome) -> None:
        """Nothing."""

    def stop(self, request: RequestView) -> None:
        del self._of[request.id]

    def close(self) -> None:
        """Nothing."""


@contextmanager
def playing(
    traces: TraceSet,
    on: Curve,
    speculation: str,
    token: float = 0.06,
    scale: float = 1.0,
    kind: type[Knowing] = Knowing,
) -> Iterator[tuple[Callable[[Trace], float], list[Knowing]]]:
    """(what answers a trace and returns its speedup, the drafter). A token takes `token` plain rounds."""
    model, made = ReplayModel(traces, on), list[Knowing]()

    def create(context: DrafterContext, options: Mapping[str, str]) -> Knowing:
        made.append(kind(model, traces, on.v1_ms * token, scale))
        return made[0]

    register_drafter(Knowing.name, create)
    try:
        with Engine(model, clock=model.clock) as engine:
            engine.set_speculation(speculation)
            charge(engine, model)

            def answer(trace: Trace) -> float:
                began, params = model.seconds, SamplingParams(max_tokens=len(trace.output), ignore_eos=True)
                assert engine.generate(list(trace.prompt), params).tokens == trace.output
                return (len(trace.output) - 1) * on.v1_ms / 1e3 / (model.seconds - began)

            yield answer, made
            assert not engine.notes
    finally:
        unregister_drafter(Knowing.name)


class Reading(Knowing):
    """It first reads a text, at most `reads` tokens of it (0: all), in a plain round for 64 tokens."""

    reads = 0

    def start(self, request: RequestView) -> None:
        super().start(request)
        self._unread = len(request.tokens)

    def draft(self, requests: Sequence[tuple[RequestView, DraftLimit]]) -> list[Draft | None]:
        tokens = min(self._unread, self.reads) if self.reads else self._unread
        self._model.seconds += tokens / 64 * self._token_ms / 0.06 / 1e3
        self._unread = 0
        return super().draft(requests)


class Block(Knowing):
    """One forward for all tokens of a draft, which takes as long for one as for eight."""

    at_once = True


class ReadingLittle(Reading):
    """At most 64 tokens."""

    reads = 64


def mean(on: str, speculation: str, scale: float = 1.0) -> float:
    traces = shipped_traces()
    with playing(traces, curve(on), speculation, scale=scale) as (answer, _):
        return geometric_mean([answer(trace) for trace in traces.traces])


def test_what_it_is_sure_of_is_worth_asking_for_on_a_steep_curve() -> None:
    """There one token more takes half a round: only the sure ones pay, and which they are is known after it
    was asked. By the mean of its acceptance it would not pay.
    """
    alone, beside = mean("steep", "auto"), mean("steep", "auto;knowing")
    assert beside > 1.05 * alone


def test_one_that_is_seldom_right_takes_nothing_from_the_others() -> None:
    assert mean("steep", "auto;knowing", scale=0.6) > 0.98 * mean("steep", "auto")


def test_it_is_not_asked_where_others_have_more() -> None:
    """A text that is copied from its prompt, after texts in which the drafter was of use."""
    new = noise_traces(4, prompt=60, output=120)
    copied = Trace("copied", "copy", new.traces[0].output * 2, new.traces[0].output * 2)
    traces = trace_set([*new.traces, copied])
    with playing(traces, curve("gpu"), "auto;knowing") as (answer, made):
        for trace in new.traces:
            assert answer(trace) > 1.2
        [drafter] = made
        before = len(drafter.asked)
        assert before > 100
        assert answer(copied) > 2.5
        assert len(drafter.asked) - before < 12


def test_what_is_read_of_a_short_prompt_says_nothing_of_a_long_one_where_reading_is_bounded() -> None:
    """Answers to short prompts, then one to a long one, whose reading would take longer than all of it."""
    short, long = noise_traces(4, prompt=120, output=120), noise_traces(1, prompt=6000, output=80)
    last = replace(long.traces[0], id="long")
    asked = {}
    for kind in (Reading, ReadingLittle):
        with playing(trace_set([*short.traces, last]), curve("gpu"), "auto;knowing", kind=kind) as played:
            answer, made = played
            for trace in short.traces:
                answer(trace)
            before = len(made[0].asked)
            assert before > 20
            answer(last)
            asked[kind] = len(made[0].asked) - before
    assert asked[Reading] == 0
    assert asked[ReadingLittle] > 20


def speedup(on: str, speculation: str, token: float, kind: type[Knowing] = Block) -> float:
    """Over texts in which nothing else has a draft."""
    traces = noise_traces(4, prompt=60, output=120)
    with playing(traces, curve(on), speculation, token, kind=kind) as (answer, _):
        return geometric_mean([answer(trace) for trace in traces.traces])


@pytest.mark.parametrize("on", ["gpu", "flat"])
@pytest.mark.parametrize("price", [0.03, 0.1, 0.3])
def test_a_block_is_asked_for_by_its_own_price(on: str, price: float) -> None:
    """Its tokens seem the cheaper the more are wanted, and `auto` finds how many that are."""
    found = speedup(on, "auto;knowing", price)
    assert found > max(1.25, 0.9 * speedup(on, "knowing", price))
    assert found > speedup(on, "auto;knowing", price, Knowing)


@pytest.mark.parametrize("on", ["steep", "cpu-q4_0"])
def test_a_dear_block_takes_little(on: str) -> None:
    assert speedup(on, "auto;knowing", 0.3) > 0.95
    assert speedup(on, "knowing", 0.3) < 0.7
