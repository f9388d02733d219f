"""A model with slow forwards, whose first draft is verified in a busy moment: `auto` drafts all the same."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from foredraft.bench.curves import Curve
from foredraft.bench.replay_model import ReplayModel
from foredraft.bench.trace import Trace
from foredraft.engine.engine import Engine
from foredraft.planner.cost import SHALLOW, CostCurve
from foredraft.planner.ratios import PRIOR_SLOPE, SURE, Ratios
from foredraft.types import Logits, Rows, SamplingParams
from virtual_time import CURVES, curve, noise, trace_set

V1_MS = 100.0
STALL = 5.0


class Stalling(ReplayModel):
    """Its first decoding forward with a draft takes five times as long, once `busy` is set."""

    busy = False
    shapes: tuple[int, ...] = ()

    def forward(self, batch: Sequence[Rows]) -> Logits:
        drafted = sum(rows.logits for rows in batch) > 1
        began = self.seconds
        logits = super().forward(batch)
        if self.busy and drafted:
            self.seconds += (STALL - 1) * (self.seconds - began)
            self.busy = False
        self.shapes = (*self.shapes, sum(rows.logits for rows in batch))
        return logits


def repeating(periods: int = 12) -> Trace:
    period = noise(25, random.Random(3))
    return Trace("repeats", "copy", period * 2, period * periods)


def play(cost: Curve) -> list[int]:
    """Rows of each decoding forward of one answer."""
    trace = repeating()
    model = Stalling(trace_set([trace]), cost)
    with Engine(model, clock=model.clock) as engine:
        engine.set_speculation("auto")
        model.busy, model.shapes = True, ()
        params = SamplingParams(max_tokens=len(trace.output), ignore_eos=True)
        (done,) = engine.run([engine.add(list(trace.prompt), params)])
        assert done.tokens == trace.output
        assert not model.busy, "something was drafted"
        return list(model.shapes)


@pytest.mark.parametrize("name", CURVES)
def test_a_stall_at_the_first_draft_does_not_end_drafting(name: str) -> None:
    shapes = play(replace(curve(name), v1_ms=V1_MS, attempt_ms=None))
    first = next(i for i, rows in enumerate(shapes) if rows > 1)
    assert max(shapes[first + 1 : first + 31], default=0) > 1, "drafting again within 30 rounds"
    assert len(shapes) < 0.6 * len(repeating().output), "and it copies"


def test_few_measurements_never_make_drafts_look_dearer_than_the_prior() -> None:
    prior = [Ratios().ratio(rows, 0) for rows in range(1, 64)]
    known = Ratios()
    for n in range(SURE - 1):
        known.learn(2 + n, 5.4, n)
        assert all(known.ratio(rows, n) <= prior[rows - 1] + 1e-9 for rows in range(1, 64))
        assert known.break_even(1.05, n) < 0.6
    for n in range(SURE):
        known.learn(2, 2.0, SURE + n)
    assert known.ratio(2, 2 * SURE) == pytest.approx(2.0)


def test_few_measurements_count_as_few_at_the_next_depth_too() -> None:
    curve = CostCurve()
    for rows, ms in ((1, 100.0), (2, 540.0), (1, 100.0), (3, 560.0)):
        curve.add(rows, ms)
    curve.focus(SHALLOW + 1)
    assert curve.ratio(4) <= 1 + 3 * PRIOR_SLOPE


def test_few_measurements_may_make_them_look_cheaper() -> None:
    known = Ratios()
    known.learn(4, 1.2, 0)
    assert known.ratio(4, 0) == pytest.approx(1.2)
