"""The few forwards at load that seed the cost curve."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from foredraft import Engine
from foredraft.engine.warmup import BASELINE_SIZES, SIZES, measure_costs
from foredraft.testing import FakeModel, ScriptedDrafter
from foredraft.types import Logits, Rows
from planner_doubles import auto_planner


def test_every_size_is_measured_and_the_sequence_left_empty() -> None:
    model = FakeModel(sequences=2)
    rounds = measure_costs(model, 1, budget_s=60)
    assert list(dict.fromkeys(measured.rows for measured in rounds)) == list(dict.fromkeys(SIZES))
    assert all(measured.forward_ms > 0 and not measured.outcomes for measured in rounds)
    assert model.length(1) == 0


class Clock:
    """Moved by the forwards of `Changing` alone."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Changing(FakeModel):
    """5 ms a forward, 1 ms a further row, and 0.5 ms where the one before had another number of rows."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self._before = 0

    def forward(self, batch: Sequence[Rows]) -> Logits:
        rows = len(batch[0].tokens)
        self._clock.now += (4.0 + rows + 0.5 * (rows != self._before)) / 1e3
        self._before = rows
        return super().forward(batch)


def test_what_a_change_of_size_takes_is_no_part_of_plain_decoding() -> None:
    clock = Clock()
    planner = auto_planner()
    planner.observe(measure_costs(Changing(clock), 0, budget_s=60, clock=clock))
    state = planner.cost.state()
    (curve,) = state["milliseconds"].values()
    assert curve["1"] == pytest.approx(5.0)
    assert curve["4"] == pytest.approx(8.5)
    assert state["size_change"] == pytest.approx(0.1)


def test_a_slow_model_measures_the_required_sizes_once_whatever_the_budget() -> None:
    model = FakeModel()
    rounds = measure_costs(model, 0, budget_s=0.0)
    assert [measured.rows for measured in rounds if measured.rows > 1] == [2, 4, 8, 16]
    forwards = [len(forward[0].tokens) for forward in model.forwards]
    assert [rows for rows in forwards if rows > 1] == [2, 4, 8, 16]


def test_no_budget_adds_sizes_that_were_not_asked_for() -> None:
    rounds = measure_costs(FakeModel(), 0, budget_s=0.0, sizes=BASELINE_SIZES)
    assert {measured.rows for measured in rounds} == {1, 4}


def test_no_forward_is_larger_than_the_model_allows() -> None:
    model = FakeModel(max_rows=6, context_length=5)
    assert max(measured.rows for measured in measure_costs(model, 0, budget_s=60)) == 5


def test_a_seeded_planner_drafts_from_the_first_round() -> None:
    planner = auto_planner()
    planner.observe(measure_costs(FakeModel(), 0))
    engine = Engine(FakeModel(), drafters=[ScriptedDrafter(lambda _: [1])], planner=planner)
    engine.generate([1, 2, 3], max_tokens=4, ignore_eos=True)
    [first, *_] = engine.decisions.latest()
    assert first.choices[0].asked == ("scripted",)


class Busy(Changing):
    """Has one thread fewer, and takes twice as long, from one forward to another."""

    def __init__(self, clock: Clock, first: int, last: int) -> None:
        super().__init__(clock)
        self._with_fewer = range(first, last)

    @property
    def idle_threads(self) -> int:
        return int(len(self.forwards) - 1 in self._with_fewer)

    def forward(self, batch: Sequence[Rows]) -> Logits:
        began = self._clock.now
        logits = super().forward(batch)
        self._clock.now += self.idle_threads * (self._clock.now - began)
        return logits


@pytest.mark.parametrize(("first", "last"), [(0, 9), (5, 1000), (6, 14), (7, 8), (0, 50), (13, 15)])
def test_what_is_kept_was_measured_with_all_threads(first: int, last: int) -> None:
    clock = Clock()
    model = Busy(clock, first, last)
    planner = auto_planner()
    rounds = measure_costs(model, 0, budget_s=60, clock=clock)
    planner.observe(rounds)
    for measured in rounds:
        slower = 1 + measured.load.idle_threads
        alone = 4.0 + measured.rows
        assert measured.forward_ms / slower == pytest.approx(alone, abs=0.51), measured
    assert rounds[-1].load.idle_threads == model.idle_threads
    (curve,) = planner.cost.state()["milliseconds"].values()
    assert curve["1"] == pytest.approx(5.0)
    for rows, ms in curve.items():
        assert ms == pytest.approx(4.0 + int(rows) + 0.5 * (rows != "1"), abs=0.01)


def test_required_sizes_are_measured_although_the_number_of_threads_changes() -> None:
    clock = Clock()
    rounds = measure_costs(Busy(clock, 5, 6), 0, budget_s=0.0, clock=clock)
    assert {measured.rows for measured in rounds} == {1, 2, 4, 8, 16}
    assert {measured.load.idle_threads for measured in rounds} == {0}


def test_nothing_is_kept_of_a_warm_up_with_fewer_threads() -> None:
    clock = Clock()
    planner = auto_planner()
    planner.observe(measure_costs(Busy(clock, 0, 1000), 0, budget_s=60, clock=clock))
    assert planner.cost.known
    assert planner.cost.state() == {}
    assert planner.cost.baseline_ms == pytest.approx(10.0)
