"""Where a request's time went, by a clock that moves one millisecond whenever it is read."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

from foredraft import Engine
from foredraft.engine.stats import RequestStats
from foredraft.testing import FakeModel, ScriptedDrafter, markov_logits
from foredraft.types import Draft, FinishEvent, Load, Round, SamplingParams

PARTS = {"draft", "verify", "sample", "other"}
PARAMS = SamplingParams(max_tokens=9, ignore_eos=True)


def ticking() -> Callable[[], float]:
    ticks = count()
    return lambda: 1e-3 * next(ticks)


def engine_of(*drafters: ScriptedDrafter, sequences: int = 1) -> Engine:
    model = FakeModel(6, logits=markov_logits(6, order=1, scale=8.0), sequences=sequences)
    return Engine(model, drafters=drafters, clock=ticking())


def test_a_plain_round_is_planned_verified_and_sampled() -> None:
    """What is learnt from a round is a part of the next one."""
    spent = engine_of().generate([1, 2, 3], PARAMS).speculation
    assert spent.rounds == 8
    assert spent.ms == pytest.approx({"draft": 0.0, "verify": 8.0, "sample": 8.0, "other": 8.0 + 7.0})


def test_drafting_counts_whether_or_not_a_draft_comes_of_it() -> None:
    """In each round but the last, which has room for the target's own token only. Observing the round before
    is a part of drafting.
    """
    nobody = ScriptedDrafter(lambda history: None)
    spent = engine_of(nobody).generate([1, 2, 3], PARAMS).speculation
    assert spent.rounds == 8
    assert spent.ms["draft"] == pytest.approx(sum(stats.ms for stats in spent.drafters.values()))
    assert spent.ms == pytest.approx({"draft": 7.0, "verify": 8.0, "sample": 8.0, "other": 15.0 + 7.0})


def test_requests_share_the_rounds_they_share() -> None:
    engine = engine_of(sequences=2)
    for prompt in ([1, 2, 3], [4, 5, 3]):
        engine.add(prompt, PARAMS)
    events = []
    while not engine.idle:
        events += engine.step()
    for event in events:
        if isinstance(event, FinishEvent):
            assert event.speculation.rounds == 8
            assert event.speculation.ms == pytest.approx(
                {"draft": 0.0, "verify": 4.0, "sample": 4.0, "other": 4.0 + 3.5}
            )


def test_a_request_without_a_round_spent_nothing() -> None:
    spent = engine_of().generate([1, 2, 3], max_tokens=1).speculation
    assert (spent.rounds, set(spent.ms), sum(spent.ms.values())) == (0, PARTS, 0.0)


def test_rounds_add_up() -> None:
    stats = RequestStats()
    stats.round(Draft((1, 2), source="some"), accepted=1, committed=2)
    first = Round(Load(1, 0, 9), 3, {"a": 1.5, "b": 0.5}, 4.0, 6.0, (), plan_ms=5.0, late_ms=3.0)
    stats.spent(first, 0.5)
    stats.spent(Round(Load(1, 0, 9), 1, {"a": 0.5}, 0.25, 0.0, (), plan_ms=0.0004), 1.0)
    summary = stats.summary(configured="", reason=None, exact=(True, ""), notes=())
    assert summary.ms == {"draft": 1.5, "verify": 2.25, "sample": 3.0, "other": 4.0}
