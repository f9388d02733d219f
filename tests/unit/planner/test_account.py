"""Budget and back-off of a request."""

from __future__ import annotations

from itertools import pairwise

import pytest

from foredraft.planner.account import MAX_BUDGET, MAX_WAIT, RATE, REPEATED, RESERVE, START, Account

COST = 0.1
RICH = 10.0


def attempts(account: Account, rounds: int, budget: float = RICH, match_length: int = 0) -> list[int]:
    """The rounds with an attempt, every one of which finds nothing."""
    found = []
    for number in range(rounds):
        if account.attempts(COST, budget, lambda: match_length):
            account.miss()
            found.append(number)
    return found


def test_the_budget_is_a_share_of_time_plus_what_drafts_win_less_what_they_cost() -> None:
    account = Account()
    account.settle(1, 1.0)
    assert account.budget == pytest.approx(START + RATE)
    account.settle(4, 1.5)
    assert account.budget == pytest.approx(START + 5 * RATE + 2.5)
    account.settle(1, 3.0)
    assert account.budget == pytest.approx(START + 6 * RATE + 0.5)


def test_what_was_won_is_not_saved_up_for_ever() -> None:
    account = Account()
    for _ in range(100):
        account.settle(10, 1.0)
    assert account.budget == MAX_BUDGET


def test_attempts_that_find_nothing_become_rare() -> None:
    rounds = attempts(Account(), 300)
    gaps = [b - a for a, b in pairwise(rounds)]
    assert gaps == sorted(gaps)
    assert gaps[0] == 1
    assert gaps[-1] == MAX_WAIT


def test_one_that_finds_something_ends_the_waiting() -> None:
    account = Account()
    attempts(account, 100)
    account.hit()
    assert attempts(account, 3) == [0, 1, 2]


def test_an_attempt_leaves_a_reserve_for_drafts() -> None:
    assert not attempts(Account(), 5, budget=COST + RESERVE - 0.01)
    assert attempts(Account(), 1, budget=COST + RESERVE)


def test_an_attempt_leaves_what_the_last_draft_needed() -> None:
    account = Account()
    account.needed = 2.0
    assert not attempts(account, 5, budget=2.0, match_length=32)
    assert attempts(account, 1, budget=2.1, match_length=32)


def test_a_repetition_is_a_reason_to_attempt_at_once_and_again_when_it_has_grown() -> None:
    account = Account()
    account.misses, account.wait = 10, 30
    assert not attempts(account, 1, match_length=REPEATED - 1)
    assert attempts(account, 1, match_length=8) == [0]
    account.wait = 30
    assert not attempts(account, 1, match_length=9), "not much more than was tried in vain"
    assert attempts(account, 1, match_length=16) == [0]


def test_an_attempt_that_costs_next_to_nothing_is_made_in_every_round_that_the_budget_allows() -> None:
    account = Account()
    for _ in range(50):
        assert account.attempts(0.001, 0.0, lambda: 0)
        account.miss()
    assert not account.attempts(0.001, -0.1, lambda: 0)
