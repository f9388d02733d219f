"""A request may lose what it has won, and a little."""

from __future__ import annotations

import random

import pytest

from foredraft.planner.stake import LEAST, LEFT, MOST, SHARE, Stakes


def linear(slope: float) -> list[float]:
    """What tokens cost beyond a plain round."""
    return [slope * tokens for tokens in range(1001)]


def test_a_new_request_risks_nothing_but_an_advance_and_certain_tokens_are_no_risk() -> None:
    stakes = Stakes()
    assert stakes.cut(1, [0.99] * 20, linear(0.5)) == 0
    assert stakes.cut(1, [1.0] * 20, linear(0.5)) == 20
    assert stakes.cut(1, [], linear(0.5)) == 0
    stakes.start(1)
    assert stakes.cut(1, [0.9] * 20, linear(0.5)) == 0
    assert stakes.cut(1, [0.99] * 20, linear(0.5)) > 1


def test_what_was_won_may_be_risked_and_what_was_lost_may_not() -> None:
    stakes = Stakes()
    stakes.settle(1, committed=9, cost=3.0)
    assert stakes.cut(1, [0.0] * 40, linear(0.5)) == int((9 * (1 + SHARE) - 3.0) / 0.5)
    stakes.settle(2, committed=1, cost=4.0)
    assert stakes.cut(2, [0.5] * 10, linear(0.5)) == 0
    stakes.settle(3, committed=2, cost=1.9)
    assert stakes.cut(3, [0.99] * 20, linear(0.5)) >= 1, "requests do not share a stake"
    stakes.forget(2)
    stakes.settle(2, committed=2, cost=1.9)
    assert stakes.cut(2, [0.99] * 20, linear(0.5)) >= 1


def test_winnings_are_not_saved_up_without_limit() -> None:
    stakes = Stakes()
    for _ in range(1000):
        stakes.settle(1, committed=10, cost=2.0)
    assert stakes.cut(1, [0.0] * 1000, linear(1.0)) == MOST


@pytest.mark.parametrize("chance", [0.0, 0.3, 0.9])
def test_the_slowdown_is_bounded_whatever_the_estimates_say(chance: float) -> None:
    """Drafts of 8 that claim to be almost certain: with the truth far below, the loss stays bounded."""
    rng, stakes, extra = random.Random(5), Stakes(), linear(0.6)
    tokens, cost = 0, 0.0
    for _ in range(2000):
        length = stakes.cut(1, [0.97] * 8, extra)
        accepted = 0
        while accepted < length and rng.random() < chance:
            accepted += 1
        tokens, cost = tokens + accepted + 1, cost + 1.0 + extra[length]
        stakes.settle(1, accepted + 1, 1.0 + extra[length])
    # One draft may overdraw the stake by what its rows cost; then nothing is drafted until that is earned.
    assert cost <= tokens * (1 + SHARE) + 1.0 + extra[8]


def test_what_rounds_take_besides_is_not_for_drafts_to_lose() -> None:
    """Rests that were not settled yet count as they will be."""
    for taken, left in ((0.0, SHARE), (0.006, SHARE - 0.006), (0.5, LEAST)):
        stakes = Stakes()
        stakes.spend(taken)
        stakes.settle(1, committed=100, cost=100.0)
        for rested in (0, 100):
            allowed = stakes.cut(1, [0.0] * 1000, linear(0.01), rested=rested)
            assert allowed == pytest.approx(left * (100 + rested) / 0.01, abs=1)


def test_where_answers_are_long_certain_drafts_get_an_advance() -> None:
    stakes = Stakes()
    for request in range(1, 30):
        stakes.forget(request, written=500)
    stakes.start(31)
    assert stakes.cut(31, [0.97] * 20, linear(0.5)) == 20
    assert stakes.cut(31, [0.3] * 20, linear(0.5)) == 0, "it is for certain drafts"
    stakes.settle(31, committed=1, cost=16.0)
    assert stakes.cut(31, [0.97] * 20, linear(0.5)) == 0, "and lost once"
    stakes.start(32, most=20)
    assert stakes.cut(32, [0.97] * 20, linear(0.5)) < 10, "a short answer has little to lose"
    stakes.forget(32, written=8)
    stakes.start(33)
    assert stakes.cut(33, [0.97] * 20, linear(0.5)) < 10, "and one that was seen is kept in mind"


def test_what_an_answer_has_still_to_come_is_told_by_those_that_were_longer_than_it_is_now() -> None:
    stakes = Stakes()
    for length in [10] * 4 + [400] * 20:
        stakes.forget(1, written=length)
    stakes.start(2)
    early = stakes.cut(2, [0.97] * 20, linear(0.5))
    stakes.settle(2, committed=20, cost=20.0 + 20 * SHARE)
    assert early < stakes.cut(2, [0.97] * 20, linear(0.5)) == 20
    stakes.settle(2, committed=400, cost=400.0 + 400 * SHARE)
    assert stakes.cut(2, [0.97] * 20, linear(0.5)) == Stakes().cut(2, [0.97] * 20, linear(0.5)), "none was"


def test_a_draft_risks_what_it_does_not_bring() -> None:
    """Eight tokens cost two plain rounds: once three of them are right, the rest may be wrong."""
    stakes = Stakes()
    assert stakes.cut(1, [1.0] * 3 + [0.2] * 5, linear(0.25)) == 8
    assert stakes.cut(1, [1.0] * 2 + [0.2] * 6, linear(0.25)) == 7, "seven cost less than two"
    assert stakes.cut(1, [0.9] * 3 + [0.2] * 5, linear(0.25)) == 0
    assert stakes.cut(1, [0.0] * 8, linear(0.25), paying=[1.0] * 8) == 8, "a tree's chances are said"


def test_a_single_long_answer_says_little() -> None:
    stakes = Stakes()
    stakes.forget(1, written=500)
    stakes.start(2)
    once = stakes.cut(2, [0.97] * 60, linear(0.5))
    for request in range(3, 30):
        stakes.forget(request, written=500)
    stakes.start(30)
    assert 0 < once < stakes.cut(30, [0.97] * 60, linear(0.5))


def test_the_first_answer_gets_a_small_advance() -> None:
    stakes = Stakes()
    stakes.start(1)
    assert stakes.cut(1, [0.95] * 20, linear(0.5)) > Stakes().cut(1, [0.95] * 20, linear(0.5))
    assert stakes.cut(1, [0.3] * 20, linear(0.5)) == 0, "it is for certain drafts"
    stakes.start(2, most=1)
    assert stakes.cut(2, [0.95] * 20, linear(0.5)) == Stakes().cut(2, [0.95] * 20, linear(0.5))


def test_answers_of_an_earlier_run_count() -> None:
    before, after, fresh = Stakes(), Stakes(), Stakes()
    for request in range(40):
        before.forget(request, written=400 + request)
    after.restore(before.export())
    for stakes in (before, after, fresh):
        stakes.start(50)
    lengths = [stakes.cut(50, [0.97] * 40, linear(0.5)) for stakes in (before, after, fresh)]
    assert lengths[0] == lengths[1] > lengths[2]
    assert after.export() == list(range(408, 440))
    fresh.forget(50, written=3)
    fresh.restore([])
    assert fresh.export() == []


def test_lengths_that_are_damaged_are_left_out() -> None:
    stakes = Stakes()
    stakes.restore([0, -3, "9", None, True, 2.5, [7], 11])
    assert stakes.export() == [11]


def test_requests_that_decode_together_have_one_stake() -> None:
    """One has won what another may then risk; who decodes elsewhere has no part in it."""
    stakes = Stakes()
    stakes.settle(1, 10, 1.0)
    assert stakes.cut(2, [0.5] * 10, linear(0.5)) == 0
    assert stakes.cut(2, [0.5] * 10, linear(0.5), together=[1, 2]) == 10
    assert stakes.cut(2, [0.5] * 10, linear(0.5), together=[2, 3]) == 0
    stakes.settle(3, 0, 20.0)
    assert stakes.cut(2, [0.5] * 10, linear(0.5), together=[1, 2, 3]) == 0


def test_what_is_left_over_fills_up_the_stakes_of_the_others() -> None:
    stakes = Stakes()
    stakes.settle(1, committed=20, cost=3.0)
    stakes.settle(2, committed=1, cost=4.0)
    stakes.settle(3, committed=1, cost=1.0)
    stakes.settle(4, committed=9, cost=3.0)
    rich = stakes._stakes[4]
    stakes.forget(1, written=20)
    assert stakes._stakes[2] == LEFT, "what it was held up by is made up for"
    assert stakes._stakes[3] == LEFT
    assert stakes._stakes[4] == rich


def test_debts_are_left_to_nobody() -> None:
    stakes = Stakes()
    stakes.settle(1, committed=1, cost=9.0)
    stakes.settle(2, committed=1, cost=1.0)
    stakes.forget(1, written=1)
    assert stakes._stakes[2] == pytest.approx(SHARE)
