"""Trying a draft out: what rounds take, on a clock of our own, and what auto is said to gain."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from foredraft.config import Stage
from foredraft.draft.pair import Pair, try_out
from foredraft.draft.passages import DEPTHS, Passage
from foredraft.draft.reading import HeadGuesses
from foredraft.draft.trial import Gain, Lengths, RoundTimes, compare_auto, gain_of, time_rounds
from foredraft.engine.engine import Engine
from foredraft.protocols import RequestView
from foredraft.testing import FakeHead, FakeModel, ScriptedDrafter
from foredraft.types import Draft, DraftLimit, Logits, Rows

PROMPTS = [[1, 2, 3], [4, 5, 6, 7]]


class Machine:
    """On which a forward takes 10 ms and 2 for each row after the first, drafting 1.5 for each token and 2
    before the first, and a forward after one of another size 5 more.
    """

    def __init__(self) -> None:
        self.now = 0.0

    def clock(self) -> float:
        return self.now


class TimedModel(FakeModel):
    def __init__(self, machine: Machine) -> None:
        super().__init__(context_length=2048)
        self._machine = machine
        self._size = 0

    def forward(self, batch: Sequence[Rows]) -> Logits:
        size = sum(len(rows.tokens) for rows in batch)
        self._machine.now += 0.010 + 0.002 * (size - 1) + 0.005 * (size != self._size)
        self._size = size
        return super().forward(batch)


class TimedDrafter(ScriptedDrafter):
    """Its drafts are as long as they may be, or `most`."""

    def __init__(self, machine: Machine, most: int = DEPTHS) -> None:
        super().__init__(lambda tokens: [7] * most)
        self._machine = machine

    def draft(self, requests: Sequence[tuple[RequestView, DraftLimit]]) -> list[Draft | None]:
        drafts = super().draft(requests)
        self._machine.now += 0.002 + 0.0015 * sum(len(draft or ()) for draft in drafts)
        return drafts


def times(most: int = DEPTHS) -> RoundTimes:
    machine, planner = Machine(), Lengths()
    plain = Engine(TimedModel(machine), clock=machine.clock)
    drafting = Engine(
        TimedModel(machine), drafters=[TimedDrafter(machine, most)], planner=planner, clock=machine.clock
    )
    found = time_rounds(plain, drafting, planner, PROMPTS, temperature=0.0, clock=machine.clock)
    assert plain.idle
    assert drafting.idle
    return found


def test_rounds_take_what_they_take_with_everything_in_them() -> None:
    """The first token of a draft too, and without what a change of size takes."""
    found = times()
    assert found.plain_ms == pytest.approx(10.0)
    assert found.spread == pytest.approx(0.0)
    whole = [1.0, *((10 + 2 * k + 2 + 1.5 * k) / 10 for k in range(1, DEPTHS + 1))]
    assert found.rounds == pytest.approx(whole)
    assert found.drafting == pytest.approx([0.0, *((2 + 1.5 * k) / 10 for k in range(1, DEPTHS + 1))])
    assert found.speed(1.4, 1) == pytest.approx(1.4 / 1.55)


def test_a_length_that_is_never_drafted_has_no_time() -> None:
    found = times(most=3)
    assert [cost is None for cost in found.rounds] == [False] * 4 + [True] * 5
    assert found.speed(2.0, 4) is None


# --- auto ----------------------------------------------------------------------------------------------


def test_the_gain_is_that_of_all_tokens_together() -> None:
    gain = gain_of([(100.0, 80.0), (200.0, 160.0), (50.0, 40.0), (400.0, 320.0)])
    assert gain is not None
    assert (gain.speed, gain.error) == pytest.approx((1.25, 0.0))
    assert gain_of([(1.0, 1.0)] * 3) is None


def test_the_error_is_as_large_as_samples_differ() -> None:
    rng = random.Random(0)

    def sample() -> Gain:
        pairs = [
            (slow, slow / 1.1 * rng.gauss(1.0, 0.05)) for slow in (rng.uniform(100, 300) for _ in range(12))
        ]
        found = gain_of(pairs)
        assert found is not None
        return found

    found = [sample() for _ in range(300)]
    mean = sum(one.speed for one in found) / len(found)
    deviation = (sum((one.speed - mean) ** 2 for one in found) / len(found)) ** 0.5
    assert sum(one.error for one in found) / len(found) == pytest.approx(deviation, rel=0.15)


@pytest.mark.parametrize(
    ("speed", "error", "shown", "pays"),
    [
        (1.031, 0.0201, (1.03, 0.03), False),
        (1.034, 0.02, (1.03, 0.02), True),
        (1.02, 0.02, (1.02, 0.02), False),
        (1.004, 0.0, (1.0, 0.0), False),
        (0.97, 0.01, (0.97, 0.01), False),
    ],
)
def test_it_pays_by_the_figures_that_are_shown(
    speed: float, error: float, shown: tuple[float, float], pays: bool
) -> None:
    gain = Gain(speed, error, 8)
    assert gain.shown == shown
    assert gain.pays is pays


def passages(count: int) -> list[Passage]:
    return [
        Passage((number, 2, 3, *range(20)), 3, 23, temperature=0.8 * (number % 2), seed=number, opens=True)
        for number in range(1, count + 1)
    ]


def test_too_few_answers_tell_no_gain() -> None:
    with Engine(FakeModel()) as without, Engine(FakeModel()) as using:
        assert compare_auto(without, using, passages(3)) is None
        found = compare_auto(without, using, passages(5))
    assert found is not None
    assert found.answers == 5
    assert found.speed > 0


def test_what_was_scored_is_tried_out_and_left_clean() -> None:
    """A head that was read with, in the only sequence that it has."""
    models = [FakeModel(features=("layer:1", "layer:2"), sequences=2) for _ in range(2)]
    with Engine(models[0]) as answering, Engine(models[1]) as other:
        head = FakeHead(models[1], sequences=1)
        pair = Pair(answering, other, HeadGuesses(head), head, Stage("heads"), head.needs)
        trial = try_out(pair, passages(4))
        assert sorted(trial.times) == [0.0, 0.8]
        assert all(None not in found.rounds for found in trial.times.values())
        assert trial.gain is not None
        assert head.length(0) == 0
        assert "heads" in other.setup.drafters.names
        assert "heads" not in answering.setup.drafters.names
