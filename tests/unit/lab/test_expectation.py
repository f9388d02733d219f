"""What a live run should have gained: its answers replayed on its own curve."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from foredraft import Engine
from foredraft.bench.attempt_cost import FREE, AttemptCost
from foredraft.bench.charge import charge
from foredraft.bench.curves import Curve
from foredraft.bench.live import measure
from foredraft.bench.passes import Passes
from foredraft.bench.replay_model import ReplayModel
from foredraft.bench.results import Row
from foredraft.bench.sides import EngineSide
from foredraft.bench.trace import Trace, TraceSet
from foredraft.bench.workloads import PromptCase
from foredraft.errors import CapacityError
from foredraft.testing import FakeModel, markov_logits
from foredraft.types import SamplingParams
from lab.expectation import Attempts, Expectation, between, expectation, measured_curves

FLAT = Curve("flat", {1: 1.0, 2: 1.01, 4: 1.02, 8: 1.04, 16: 1.1})
STEEP = Curve("steep", {1: 1.0, 2: 2.0, 4: 4.0, 8: 8.0, 16: 16.0})


def engine(context: int = 600) -> Engine:
    return Engine(FakeModel(6, logits=markov_logits(6, order=1, scale=8.0), context_length=context))


@pytest.fixture
def rows() -> list[Row]:
    sides = [EngineSide(name, engine()) for name in ("off", "auto")]
    cases = [PromptCase(name, "chat", (name,)) for name in ("abc", "fed")]
    found = list(measure(sides, Passes(cases, 2), SamplingParams(max_tokens=96, ignore_eos=True)))
    return [replace(row, sample=replace(row.sample, decode_ms=950.0, spent_ms={})) for row in found]


class Known(Attempts):
    """Attempts of a cost that is known."""

    def __init__(self, cost: AttemptCost = FREE) -> None:
        super().__init__()
        self._cost = cost

    def cost(self, plain_ms: float) -> AttemptCost:
        return self._cost


def expected(rows: list[Row], curves: dict[int, Curve], cost: AttemptCost = FREE) -> Expectation:
    found = expectation(rows, "auto", engine(), curves, Known(cost))
    assert found is not None
    return found


def test_answers_that_repeat_themselves_gain_on_a_flat_curve(rows: list[Row]) -> None:
    found = expected(rows, {256: FLAT})
    assert 1.5 < found.replayed <= found.hindsight * 1.01
    assert found.live == pytest.approx(1.0), "it took as long with drafts as without"


def test_on_a_steep_curve_nothing_was_to_be_gained(rows: list[Row]) -> None:
    found = expected(rows, {256: STEEP})
    assert found.replayed == pytest.approx(1.0, abs=0.03)
    assert found.hindsight == pytest.approx(1.0, abs=0.01)


def test_time_beside_the_forward_makes_drafts_worth_more(rows: list[Row]) -> None:
    slow = [replace(row, sample=replace(row.sample, spent_ms={"other": 950.0})) for row in rows]
    assert expected(slow, {256: STEEP}).hindsight > expected(rows, {256: STEEP}).hindsight


def test_what_was_not_recorded_cannot_be_replayed(rows: list[Row]) -> None:
    assert expectation(rows, "suffix", engine(), {256: FLAT}, Known()) is None


def test_attempts_are_charged_as_they_cost_in_the_run(rows: list[Row]) -> None:
    dear = AttemptCost({"suffix": 0.3}, choosing=3.0)
    assert expected(rows, {256: FLAT}, dear).replayed < 0.95 * expected(rows, {256: FLAT}).replayed


def test_what_attempts_cost_is_read_from_decisions() -> None:
    """Every round goes by with 0.3 ms before the forward, and 0.1 of them without speculation, too."""
    rng = random.Random(5)
    passage = tuple(rng.choices(range(500), k=450))
    output = (*rng.choices(range(500), k=50), *passage[:250])
    texts = TraceSet("made up", 500, "h", (), [Trace("copy", "c", passage, output)])
    cost = AttemptCost({"suffix": 0.3, "recycle": 0.1}, choosing=0.2, round=0.3)
    model = ReplayModel(texts, Curve("c", {1: 1.0, 64: 20.0}, attempt_ms=cost))
    attempts = Attempts()
    with Engine(model, clock=model.clock) as other:
        other.set_speculation("auto")
        charge(other, model)
        other.add(list(passage), SamplingParams(max_tokens=300, ignore_eos=True))
        while not other.idle:
            other.step()
            attempts.see(other.decisions.latest())
            attempts.see(other.decisions.latest())
    found = attempts.cost(0.1)
    assert [found.of("suffix"), found.of("recycle")] == pytest.approx([0.3, 0.1], rel=0.01)
    assert found.choosing == pytest.approx(0.2, rel=0.01)
    assert found.round == pytest.approx(0.2, rel=0.01)


def test_a_curve_between_two_depths() -> None:
    curves = {100: Curve("a", {1: 1.0, 4: 2.0}, 10.0), 300: Curve("b", {1: 1.0, 4: 3.0}, 20.0)}
    assert between(curves, 0).v1_ms == 10.0
    assert between(curves, 900).v1_ms == 20.0
    half = between(curves, 200)
    assert [half.v1_ms, half.points[4]] == pytest.approx([15.0, (20 + 60) / 2 / 15])


@pytest.mark.parametrize(("deepest", "depths"), [(0, [256]), (256, [256]), (257, [256, 500])])
def test_curves_are_measured_as_deep_as_answers_were(deepest: int, depths: list[int]) -> None:
    """On an engine that was used; 768 tokens would not fit."""
    used = engine(532)
    used.generate("abc", max_tokens=8)
    curves = measured_curves(used, deepest)
    assert list(curves) == depths
    for curve in curves.values():
        assert curve.points[1] == 1.0
        assert max(curve.points) >= 8
        assert curve.v1_ms > 0


def test_a_context_without_room_for_a_curve() -> None:
    with pytest.raises(CapacityError):
        measured_curves(Engine(FakeModel(6, context_length=3)), 0)
