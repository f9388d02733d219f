"""`auto` as an engine uses it: rare paths that must not break it or its accounts."""

from __future__ import annotations

import random

import pytest

from foredraft.engine.engine import Engine
from foredraft.planner import AutoPlanner
from foredraft.planner.cost import CostCurve
from foredraft.protocols import Proposer, RequestView
from foredraft.testing import FakeModel, ScriptedDrafter
from foredraft.types import Capabilities, Draft, Load, Outcome, Rollback, Round, SamplingParams
from planner_doubles import VOCABULARY, counting
from virtual_time import ask, copying_trace, curve, trace_set, virtual_engine

V1_MS = 10.0
CAPABLE = Capabilities(
    Rollback.TRUNCATE, batch_invariant=True, invariance_note="", max_rows=64, max_batch=512, sequences=8
)


def next_tokens(history: list[int]) -> list[int]:
    return [(history[-1] + 1 + i) % (VOCABULARY - 1) for i in range(4)]


def test_a_request_without_room_does_not_keep_drafters_from_others() -> None:
    drafter = ScriptedDrafter(next_tokens, name="next")  # type: ignore[arg-type]
    model = FakeModel(VOCABULARY, logits=counting, sequences=2)
    with Engine(model, drafters=[drafter], planner=AutoPlanner(model.capabilities)) as engine:
        params = SamplingParams(max_tokens=200, ignore_eos=True)
        engine.run([engine.add([3], params, max_draft=0), engine.add([4], params)])
        assert engine.decisions.totals()["next"].ms > 0.0


def test_one_that_may_not_draft_at_all_is_not_planned_for() -> None:
    rng = random.Random(1)
    trace = copying_trace(60, rng)
    with virtual_engine(trace_set([trace]), curve("gpu"), "auto") as (engine, _):
        request = engine.add(list(trace.prompt), SamplingParams(max_tokens=60, ignore_eos=True), max_draft=0)
        [done] = engine.run([request])
        assert done.speculation.reason == "switched off for this request"
        engine.run([ask(engine, trace)])


def test_a_stall_while_the_size_of_forwards_changes_leaves_all_costs_positive() -> None:
    costs = CostCurve()

    def forward(rows: int, ms: float, batch: int = 1) -> None:
        outcomes = tuple((i, Outcome(8, (1,))) for i in range(batch))
        costs.learn(Round(Load(batch, 0, 8), rows, {}, ms, 0.0, outcomes))

    for _ in range(8):
        for rows, ms in ((1, 5.0), (5, 5.2), (1, 11.0), (1, 5.0)):
            forward(rows, ms)
    for _ in range(20):
        forward(2, 5.1, batch=2)
    costs.focus(Load(2, 0, 8))
    assert costs.baseline_ms > 0.0
    assert min(costs.costs(8)) > 0.0


def test_a_request_that_stops_without_having_started_does_no_harm() -> None:
    planner = AutoPlanner(CAPABLE)
    planner.stop(RequestView(7, [1, 2], prompt_length=2))


def test_forwards_of_no_time_do_no_harm() -> None:
    planner = AutoPlanner(CAPABLE)
    view = RequestView(1, [1, 2], prompt_length=2)
    planner.start(view, [Proposer("any", lambda request: 0)])
    for _ in range(3):
        planner.limits([view], Load(1, 0, 2))
        view.tokens.append(3)
        planner.observe([Round(Load(1, 0, 2), 1, {"any": 0.0}, 0.0, 0.0, ((1, Outcome(2, (3,))),))])


def test_candidates_of_before_a_preemption_are_not_scored_by_what_comes_after() -> None:
    planner = AutoPlanner(CAPABLE)
    view = RequestView(1, [1, 2], prompt_length=2)
    planner.start(view, [Proposer("a", lambda request: 0)])
    load = Load(1, 0, 2)
    planner.observe([Round(load, rows, {}, V1_MS * rows, 0.0, ()) for rows in (1, 1, 2, 4, 8)])
    planner.limits([view], load)
    planner.choose([view], [[Draft((5,), "a")]], load)
    view.tokens.extend([5, 9])  # the first of them when its prompt was read again
    planner.observe([Round(load, 1, {"a": 0.1}, V1_MS, 0.0, ((1, Outcome(3, (9,))),))])
    assert planner.acceptance_of(0).state()["counts"] == {}


@pytest.mark.parametrize("weight", [1e3, -1e9, float("nan")])
def test_a_damaged_weight_is_left_out(weight: float) -> None:
    planner = AutoPlanner(CAPABLE)
    planner.load_state({"acceptance": {"weights": {"5": weight}, "mixes": {"a|1": [weight, 1, 1]}}})
    assert planner.acceptance_of(0).state()["weights"] == {}
