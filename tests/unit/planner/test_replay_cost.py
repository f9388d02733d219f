"""`planner.replay`: what it costs later that accepted tokens are computed again."""

from __future__ import annotations

import random

import pytest

from foredraft.planner.adaptive import AdaptivePlanner
from foredraft.planner.replay import Replay
from foredraft.protocols import RequestView
from foredraft.testing import FakeModel
from foredraft.types import Draft, Load, Outcome, Rollback, Round

ROW = 0.25


def ratio(rows: int) -> float:
    return 1.0 + ROW * (rows - 1)


def rejected(length: int, accepted: int) -> Outcome:
    return Outcome(0, (1,) * (accepted + 1), Draft((1,) * length, "suffix"), accepted)


def test_a_model_that_truncates_pays_nothing() -> None:
    replay = Replay.of(FakeModel().capabilities)
    assert replay.prices(1, [0.9, 0.5], ratio) == [0.0, 0.0, 0.0]
    assert replay.settle(1, rejected(4, 1)) == 0


def test_prices_are_the_expected_rows() -> None:
    """Against a simulation of the draft's fate."""
    rng, chain, free, owed = random.Random(1), [0.8, 0.6, 0.3, 0.2], 1, 5
    replay = Replay(free)
    replay.settle(1, rejected(6, owed - 1))
    prices = replay.prices(1, chain, ratio)
    for length, price in enumerate(prices):
        total, rounds = 0.0, 40_000
        for _ in range(rounds):
            luck = rng.random()
            accepted = sum(luck < survival for survival in chain[:length])
            total += owed + accepted + 1 if length - accepted > free else 0
        assert price == pytest.approx(ROW * total / rounds, rel=0.05, abs=0.01)


def test_what_is_owed_adds_up_until_a_round_keeps_everything() -> None:
    replay = Replay(free=1)
    assert replay.settle(1, rejected(6, 2)) == 3
    assert replay.settle(1, rejected(6, 0)) == 4
    assert replay.settle(2, rejected(6, 4)) == 5
    assert replay.settle(1, rejected(6, 5)) == 0, "one too many costs nothing"
    replay.settle(1, rejected(6, 2))
    assert replay.settle(1, Outcome(0, (1,))) == 0, "a plain round computes what was owed"
    replay.forget(2)
    assert replay.settle(2, rejected(6, 4)) == 5


def planner(free: int | None) -> AdaptivePlanner:
    """One that knows V(n), and that drafts are right four times in five."""
    able = FakeModel().with_capabilities(
        rollback=Rollback.TRUNCATE if free is None else Rollback.SNAPSHOT, rollback_bound=free or 0
    )
    made = AdaptivePlanner(Replay.of(able.capabilities))
    made.recall({64: {rows: 10 * ratio(rows) for rows in range(1, 33)}}, {})
    view = RequestView(id=1, tokens=[1])
    made.start(view)
    made.observe(Round(Load(1, 0, 64), 1, {}, 10.0, 0.0, ((1, Outcome(1, (1,))),)))
    return made


def lengths(made: AdaptivePlanner, chance: float, load: Load | None = None) -> int:
    chain = [chance ** (i + 1) for i in range(16)]
    return made._lengths([1], [chain], load or Load(1, 0, 64))[0]


@pytest.mark.parametrize("chance", [0.6, 0.75, 0.9])
def test_the_dearer_a_rejection_is_the_less_is_drafted(chance: float) -> None:
    free, some, none = (lengths(planner(bound), chance) for bound in (None, 2, 0))
    assert free >= some >= none
    assert free > none


def test_a_draft_that_would_pay_but_for_its_rejections_is_not_verified() -> None:
    assert lengths(planner(None), 0.4) > 0 == lengths(planner(0), 0.4)


def test_rounds_that_compute_something_again_do_not_count_as_dearer() -> None:
    made = planner(0)
    for _ in range(20):
        made.observe(Round(Load(1, 0, 64, owed=9), 1, {}, 40.0, 0.0, ((1, Outcome(1, (1,))),)))
    assert made.curve()[192][1] == pytest.approx(10.0)


def test_rejections_are_charged_to_the_request() -> None:
    """However well it looks, drafting ends for one whose rejections cost more than it has won."""
    cheap, dear = planner(None), planner(0)
    for made in (cheap, dear):
        outcome = rejected(1, 0)
        made.observe(Round(Load(1, 0, 64), 2, {}, 10 * ratio(2), 0.0, ((1, outcome),)))
    assert dear._stakes._stakes[1] == pytest.approx(cheap._stakes._stakes[1] - ROW, abs=0.01)
