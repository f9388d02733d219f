"""Whether a drafter that takes time pays, by what it cost and brought."""

from __future__ import annotations

import random
from statistics import mean

import pytest

from foredraft.planner.tables.calibration import Survival
from foredraft.planner.worth import DrafterWorth, Offer
from foredraft.types import Draft, Outcome


def flat(rows: int) -> float:
    return 1.0 + 0.05 * (rows - 1)


def offer(worth: DrafterWorth) -> Offer | None:
    return worth.offer(flat, decoding=1, margin=1.03)


def fed(*, cost: float, right: int, length: int, rounds: int = 50) -> DrafterWorth:
    worth = DrafterWorth()
    feed(worth, cost=cost, right=right, length=length, rounds=rounds)
    return worth


def feed(worth: DrafterWorth, *, cost: float, right: int, length: int, rounds: int = 50) -> None:
    for _ in range(rounds):
        worth.drafted(cost, length)
        worth.scored(right, int(right < length))


def test_a_cheap_drafter_is_free_however_bad_it_is() -> None:
    assert fed(cost=0.005, right=0, length=4).free
    assert not fed(cost=0.5, right=4, length=4).free
    assert not DrafterWorth().free, "nothing is known of it"


def test_who_is_free_stays_so_while_the_machine_gets_a_little_slower() -> None:
    worth, free = DrafterWorth(), []
    for cost in (0.05, 0.1, 0.2, 0.1):
        feed(worth, cost=cost, right=0, length=4)
        free.append(worth.free)
    assert free == [True, True, False, False]  # what was too dear must become cheap, and not only less dear


def test_a_good_costly_drafter_is_worth_it_and_a_useless_one_is_not() -> None:
    good = offer(fed(cost=0.4, right=4, length=4))
    assert good is not None
    assert good.limit.max_tokens >= 4
    assert 0.0 < good.limit.min_survival < 1.0
    assert good.rate > 1.5
    assert offer(fed(cost=0.4, right=0, length=4)) is None


def test_a_drafter_that_becomes_good_is_worth_it_again() -> None:
    worth = fed(cost=0.4, right=0, length=4)
    feed(worth, cost=0.4, right=4, length=4, rounds=20)
    assert offer(worth) is not None


def test_a_drafter_dearer_than_the_target_never_pays() -> None:
    assert offer(fed(cost=4 * 1.2, right=4, length=4)) is None


def test_a_dear_ask_or_two_change_nothing_and_a_cost_that_fell_is_believed() -> None:
    worth = fed(cost=0.4, right=4, length=4)
    feed(worth, cost=40.0, right=4, length=4, rounds=6)
    assert worth.token_cost == pytest.approx(0.1)
    feed(worth, cost=40.0, right=4, length=4, rounds=20)
    assert worth.token_cost == pytest.approx(10.0)
    feed(worth, cost=0.4, right=4, length=4, rounds=3)
    assert worth.token_cost == pytest.approx(0.1)


def test_an_ask_that_proposes_nothing_says_nothing_of_a_token() -> None:
    worth = fed(cost=0.4, right=4, length=4)
    for _ in range(30):
        worth.drafted(3.0, 0)
    assert worth.token_cost == pytest.approx(0.1)


def test_second_choices_bring_a_token_and_end_the_draft() -> None:
    """What the chance promises of a draft four deep is what it brings: at each depth the first choice is
    right in six rounds of ten, and the second, on which nothing is built, in two.
    """
    tree = Draft((1, 9, 2, 9, 3, 9, 4, 9), "dm", parents=(-1, -1, 0, 0, 2, 2, 4, 4))
    survival, worth, rng = Survival(), DrafterWorth(), random.Random(0)
    promised: list[float] = []
    brought: list[int] = []
    for _ in range(4000):
        text: list[int] = []
        for depth in range(1, 5):
            text.append(rng.choices((depth, 9, 0), (6, 2, 2))[0])
            if text[-1] != depth:
                break
        brought.append(sum(token > 0 for token in text))
        survival.remember(1, [tree])
        [score] = survival.score(1, Outcome(5, (*text, 0)))
        worth.scored(score.right, score.wrong)
        promised.append(sum(worth.chance**depth for depth in range(1, 5)))
    assert mean(promised) == pytest.approx(mean(brought), rel=0.1)
