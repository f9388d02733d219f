"""The few forwards at load that seed the cost curve."""

from __future__ import annotations

from foretoken import Engine
from foretoken.engine.warmup import SIZES, measure_costs
from foretoken.planner.adaptive import AdaptivePlanner
from foretoken.testing import FakeModel, ScriptedDrafter


def test_every_size_is_measured_and_the_sequence_left_empty() -> None:
    model = FakeModel(sequences=2)
    rounds = measure_costs(model, 1, budget_s=60)
    assert [measured.rows for measured in rounds] == list(dict.fromkeys(SIZES))
    assert all(measured.forward_ms > 0 and not measured.outcomes for measured in rounds)
    assert model.length(1) == 0


def test_a_slow_model_stops_at_the_budget_but_learns_a_plain_forward() -> None:
    rounds = measure_costs(FakeModel(), 0, budget_s=0.0)
    assert [measured.rows for measured in rounds] == [1]


def test_no_forward_is_larger_than_the_model_allows() -> None:
    model = FakeModel(max_rows=6, context_length=5)
    assert max(measured.rows for measured in measure_costs(model, 0, budget_s=60)) == 5


def test_a_seeded_planner_drafts_from_the_first_round() -> None:
    planner = AdaptivePlanner()
    for measured in measure_costs(FakeModel(), 0):
        planner.observe(measured)
    engine = Engine(FakeModel(), drafters=[ScriptedDrafter(lambda _: [1])], planner=planner)
    assert planner.reason() != "the cost of plain decoding is measured first"
    engine.generate([1, 2, 3], max_tokens=4)
