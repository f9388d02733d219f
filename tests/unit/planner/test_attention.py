"""Who is asked how often, when asking costs something."""

from __future__ import annotations

import pytest

from foretoken.planner.attention import EARNED, INCOME, PATIENCE, START, Attention

DEAR = 0.07


def asked(attention: Attention, rounds: int, cost: float, request: int = 1) -> list[bool]:
    return [attention.tick(request, cost) for _ in range(rounds)]


def test_what_costs_hardly_anything_is_asked_in_every_round() -> None:
    assert all(asked(Attention(), 1000, INCOME))


def test_what_brings_nothing_takes_its_share_of_the_time_and_no_more() -> None:
    spent = DEAR * sum(asked(Attention(), 1000, DEAR))
    assert spent <= START + INCOME * 1000
    assert spent > 0.25 * INCOME * 1000


def test_what_saves_time_is_asked_in_every_round() -> None:
    attention = Attention()
    for _ in range(200):
        assert attention.tick(1, DEAR)
        attention.note(1, 0.9, 0.5)
        attention.saved(1, 1.1 * DEAR / EARNED)


def test_losses_are_not_earnings() -> None:
    attention, other = Attention(), Attention()
    rounds = []
    for which in (attention, other):
        rounds.append(asked(which, 50, DEAR))
        which.saved(1, -5.0 if which is other else 0.0)
        rounds.append(asked(which, 50, DEAR))
    assert rounds[:2] == rounds[2:]


def test_a_promising_draft_is_followed_up_with_what_was_saved() -> None:
    attention = Attention()
    asked(attention, 200, DEAR)
    attention.note(1, 0.9, 0.5)
    assert asked(attention, 2, DEAR) == [True, True]


@pytest.mark.parametrize("turn", ["note", "wake"])
def test_a_quiet_request_is_asked_seldom_until_something_turns_up(turn: str) -> None:
    attention = Attention()
    attention.tick(1, DEAR)
    attention.saved(1, 100.0)  # so credit is not what limits it
    asked(attention, PATIENCE + 1, DEAR)
    assert sum(asked(attention, 10, DEAR)) <= 1
    attention.note(1, 0.9, 0.5) if turn == "note" else attention.wake(1)
    assert attention.tick(1, DEAR)


def test_requests_have_credit_of_their_own_and_leave_none() -> None:
    attention = Attention()
    first = asked(attention, 100, DEAR, request=1)
    assert asked(attention, 100, DEAR, request=2) == first
    attention.forget(1)
    assert asked(attention, 100, DEAR, request=1) == first


def test_where_a_draft_is_likely_to_pay_a_request_runs_into_debt_and_no_further() -> None:
    attention = Attention()
    asked(attention, 40, DEAR)
    spent = [attention.tick(1, DEAR, promising=True) for _ in range(2 * int(START / DEAR) + 2)]
    assert spent[0]
    assert not spent[-1]
    rounds = [attention.tick(1, DEAR, promising=True) for _ in range(1000)]
    assert DEAR * sum(rounds) <= DEAR + INCOME * 1000
    assert DEAR * sum(rounds) >= 0.9 * INCOME * 1000, "all of it, where nothing else is asked"
    attention.saved(1, 10.0)
    assert attention.tick(1, DEAR, promising=True)
