"""Who is asked how often, when asking costs something."""

from __future__ import annotations

from math import ceil

import pytest

from foredraft.planner.attention import (
    DEAR,
    EARNED,
    LENT,
    LONGEST_REST,
    OWED,
    PATIENCE,
    START,
    Attention,
    times,
)
from foredraft.planner.income import INCOME, LEAST
from foredraft.planner.stake import CERTAIN

COST = 0.07


def asked(attention: Attention, rounds: int, cost: float, request: int = 1) -> list[bool]:
    return [request in attention.tick([request], cost) for _ in range(rounds)]


def test_what_costs_hardly_anything_is_asked_in_every_round() -> None:
    assert all(asked(Attention(), 1000, INCOME))


def test_what_brings_nothing_takes_its_share_of_the_time_and_no_more() -> None:
    spent = COST * sum(asked(Attention(), 1000, COST))
    assert spent <= START + INCOME * 1000
    assert spent > 0.25 * INCOME * 1000


def test_a_question_that_takes_longer_than_a_round_is_asked_now_and_then() -> None:
    """Beside forwards of half a millisecond it does, and a draft of eight tokens pays for it all the same."""
    spent, rounds = 2.5 * sum(asked(Attention(), 4000, 2.5)), 4000
    assert 0.25 * INCOME * rounds < spent <= START + INCOME * rounds


def test_what_is_paid_is_what_it_costs() -> None:
    attention = Attention()
    assert asked(attention, 2, COST) == [False, True]
    assert START + 2 * INCOME - attention._requests[1].credit == pytest.approx(COST)
    assert attention.tick([2, 3, 4], COST) == set()
    assert attention.tick([2, 3, 4], COST) == {2, 3, 4}
    paid = [START + 2 * INCOME - attention._requests[request].credit for request in (2, 3, 4)]
    assert sum(paid) == pytest.approx(COST * times(3))
    before = attention._requests[2].credit
    assert attention.tick([1, 2], INCOME) == {1, 2}, "next to nothing"
    assert attention._requests[2].credit == before


def test_what_saves_time_is_asked_in_every_round() -> None:
    attention = Attention()
    attention.tick([1], COST)
    for _ in range(200):
        assert attention.tick([1], COST)
        attention.note(1, 0.9, 0.5)
        attention.saved(1, 1.1 * COST / EARNED)


def test_a_first_question_that_is_cheap_waits_for_a_second_token() -> None:
    assert asked(Attention(), 2, COST) == [False, True]
    assert Attention().tick([1], COST, {1: 1.0}) == {1}, "unless it is likely to pay"
    company = Attention()
    assert asked(company, 2, 0.5 * COST) == [False, True]
    assert company.tick([1, 2], 0.5 * COST) == {1}
    assert company.tick([1, 2], 0.5 * COST) == {1, 2}
    assert any(asked(Attention(), 4, DEAR)), "the dearest that need not be earned"


def test_a_dear_first_question_has_to_be_earned() -> None:
    attention, cost = Attention(), START + 0.05
    attention.begin(1)
    needed = ceil(cost / INCOME)
    rests = attention.rest([1], cost)
    rounds = asked(attention, 300, cost)
    assert needed - 1 <= rounds.index(True) < 3 * needed
    assert rests == min(rounds.index(True), LONGEST_REST)
    assert all(sum(rounds[:end]) * cost <= INCOME * end for end in range(1, 301)), (
        "what it began with is not for later ones either"
    )


def test_a_dear_first_question_that_is_likely_to_pay_does_not_wait() -> None:
    attention, cost = Attention(), START + 0.05
    assert attention.tick([1], cost, {1: 1.0}) == {1}


def test_losses_are_not_earnings() -> None:
    attention, other = Attention(), Attention()
    rounds = []
    for which in (attention, other):
        rounds.append(asked(which, 50, COST))
        which.saved(1, -5.0 if which is other else 0.0)
        rounds.append(asked(which, 50, COST))
    assert rounds[:2] == rounds[2:]


def test_a_promising_draft_is_followed_up_with_what_was_saved() -> None:
    attention = Attention()
    asked(attention, 200, COST)
    attention.note(1, 0.9, 0.5)
    assert asked(attention, 2, COST) == [True, True]


@pytest.mark.parametrize("turn", ["note", "wake"])
def test_a_quiet_request_is_asked_seldom_until_something_turns_up(turn: str) -> None:
    attention = Attention()
    attention.tick([1], COST)
    attention.saved(1, 100.0)  # so credit is not what limits it
    asked(attention, PATIENCE + 1, COST)
    assert sum(asked(attention, 10, COST)) <= 1
    attention.note(1, 0.9, 0.5) if turn == "note" else attention.wake(1)
    assert attention.tick([1], COST)


def test_a_request_leaves_no_credit_behind() -> None:
    attention = Attention()
    first = sum(asked(attention, 100, COST))
    attention.forget(1)
    assert abs(sum(asked(attention, 100, COST)) - first) <= 1


def test_those_with_nothing_to_look_for_are_asked_together_and_share_what_that_takes() -> None:
    attention = Attention()
    requests = [1, 2, 3, 4]
    for request in requests:  # they come one after another
        asked(attention, 9, COST, request)
    ticks = []
    for _ in range(2000):
        ticks.append(attention.tick(requests, COST))
        if ticks[-1]:
            attention.saved(9, COST * times(4))  # for one that is gone: so asking pays among so many
    ticks = ticks[200:]
    assert {len(asked_now) for asked_now in ticks} == {0, 4}
    often = sum(map(bool, ticks))
    assert 0.25 * INCOME * 1800 * 4 < COST * times(4) * often <= INCOME * 1800 * 4
    alone = sum(asked(Attention(), 2000, COST)[200:])
    assert often > 2 * alone


def test_who_has_seen_something_promising_is_asked_without_the_others() -> None:
    attention = Attention()
    for _ in range(100):
        attention.tick([1, 2], COST)
    attention.saved(1, 10.0)
    attention.note(1, 0.9, 0.5)
    assert [attention.tick([1, 2], COST) for _ in range(2)] in ([{1}, {1}], [{1, 2}, {1}], [{1}, {1, 2}])


def test_where_a_draft_is_likely_to_pay_a_request_runs_into_debt_and_no_further() -> None:
    attention = Attention()
    asked(attention, 40, COST)
    credit = attention._requests[1].credit
    spent = [
        1 in attention.tick([1], COST, {1: 1.0}) for _ in range(1 + int((credit + LENT) / (COST - INCOME)))
    ]
    assert spent[0]
    assert not spent[-1]
    rounds = [1 in attention.tick([1], COST, {1: 1.0}) for _ in range(1000)]
    assert COST * sum(rounds) <= COST + INCOME * 1000
    assert COST * sum(rounds) >= 0.9 * INCOME * 1000, "all of it, where nothing else is asked"
    attention.saved(1, 10.0)
    assert 1 in attention.tick([1], COST, {1: 1.0})


@pytest.mark.parametrize("cost", [0.07, 0.17, 0.5, 1.2])
@pytest.mark.parametrize("together", [1, 4])
def test_who_is_called_solvent_is_asked_if_something_is_promising(cost: float, together: int) -> None:
    """To wake from a rest and find that nobody can pay takes half a question."""
    requests, found = list(range(together)), set()
    for rounds in (*range(1, 9), *range(9, 1000, 9)):
        attention = Attention()
        for _ in range(400 + rounds % 7):
            attention.tick(requests, cost, dict.fromkeys(requests, 1.0))
        attention.rest(requests, cost)
        solvent = attention.solvent(0, together, rounds)
        attention.rested(requests, rounds)
        assert attention.solvent(0, together, 0) is solvent
        asks = 0 in attention.tick(requests, cost, {0: 1.0})
        assert asks or not solvent
        if together == 1:
            assert solvent or not asks, "among others its turn may have come all the same"
        found.add(solvent)
    assert found == {True, False}


@pytest.mark.parametrize("cost", [0.07, 0.17, 0.5, 1.2])
def test_who_was_never_asked_is_solvent_when_a_first_question_can_be_paid(cost: float) -> None:
    """At what it takes at the beginning of the rest, whatever it took before."""
    for rounds in range(1, 200, 3):
        attention = Attention()
        attention.tick([2], 0.03)
        attention.begin(1)
        attention.rest([1], cost)
        solvent = attention.solvent(1, 1, rounds)
        attention.rested([1], rounds)
        assert (1 in attention.tick([1], cost, {1: 1.0})) is solvent
        if solvent:
            break
    assert solvent
    assert (rounds > 1) is (cost > LENT), "for what is promising 0.3 rounds are lent"


def test_less_is_lent_where_the_next_token_is_less_certain() -> None:
    """An answer of ten tokens that was lent a fifth of a round for a match of four loses it."""
    for cost in (0.05, 0.12, 0.2, 0.3):
        asked_at = [
            chance for chance in (0.6, 0.75, 0.9, 0.98, 1.0) if Attention().tick([1], cost, {1: chance})
        ]
        if cost > DEAR:
            assert all(LENT * chance**CERTAIN >= cost - INCOME for chance in asked_at), "no more"
            assert 0.6 not in asked_at
        assert 1.0 in asked_at
        for chance in (0.6, 0.75, 0.9, 0.98, 1.0):
            attention = Attention()
            attention.begin(1)
            attention.rest([1], cost)
            assert attention.solvent(1, 1, 0, chance) is (chance in asked_at)


@pytest.mark.parametrize("others", [1, 7])
def test_who_is_left_alone_owes_nothing_for_questions_in_company(others: int) -> None:
    """A debt for questions among others kept a copying text from its draft for rounds after they had gone."""
    attention, cost = Attention(), 0.2
    requests = range(1, 2 + others)
    attention.tick(requests, cost)
    for _ in range(20):
        attention.tick(requests, cost, {1: 1.0})
    assert attention._requests[1].credit < 0.0
    for gone in range(2, 2 + others):
        attention.forget(gone)
    assert attention.solvent(1, 1, 0)
    assert attention.tick([1], cost, {1: 1.0}) == {1}
    assert attention.tick([1], cost, {1: 1.0}) == set(), "once"


def test_where_a_row_costs_more_than_a_token_is_worth_only_a_draft_that_pays_is_promising() -> None:
    """In company a draft may be another pass over the weights: that it begins right is not enough."""
    attention = Attention()
    for _ in range(3):
        asked(attention, 40, COST)
        attention.saved(1, 10.0)
        attention.note(1, 1.0, 2.5)
        attention.wake(1)
        assert sum(asked(attention, 5, COST)) <= 1
    attention.note(1, 0.4, 2.5, pays=True)
    assert all(asked(attention, PATIENCE, COST))
    attention.note(1, 0.0, 0.5)
    asked(attention, 40, COST)
    attention.saved(1, 10.0)
    attention.wake(1)
    assert attention.tick([1], COST), "one more row is not as dear any more"


def test_in_company_that_drafts_never_help_less_is_asked() -> None:
    attention, requests = Attention(), list(range(8))
    rounds = [attention.tick(requests, COST) for _ in range(4000)]
    late = sum(map(bool, rounds[-2000:]))
    assert 0 < COST * times(8) * late / (8 * 2000) <= LEAST * INCOME
    attention.saved(3, 30.0)
    after = [attention.tick(requests, COST) for _ in range(500)]
    assert sum(map(bool, after)) > 2 * late / 4, "a draft that saved much"


def test_what_is_rested_through_in_company_is_what_would_have_been_earned() -> None:
    awake, resting = Attention(), Attention()
    requests = [1, 2, 3]
    for attention in (awake, resting):
        attention.tick(requests, COST)
        while not attention.rest(requests, COST):
            attention.tick(requests, COST)
    rounds = resting.rest(requests, COST)
    assert rounds > 0
    assert not any(awake.tick(requests, COST) for _ in range(rounds))
    resting.rested(requests, rounds)
    earned = [[which._requests[it].credit for it in requests] for which in (awake, resting)]
    assert earned[0] == earned[1]


def asked_running(attention: Attention) -> int:
    """Rounds running in which request 1 is asked: its drafts are promising, until its credit is spent."""
    count = 0
    attention.note(1, 0.9, 0.5)
    while attention.tick([1], COST):
        attention.note(1, 0.9, 0.5)
        count += 1
    return count


def test_what_drafts_lost_has_to_be_saved_again_before_it_earns() -> None:
    steady, wavering = Attention(), Attention()
    for attention in (steady, wavering):
        attention.tick([1], COST)
    steady.saved(1, 2.0)
    for _ in range(20):
        wavering.saved(1, 1.0)
        wavering.saved(1, -1.0)
    often = [asked_running(attention) for attention in (steady, wavering)]
    assert often[0] > 1.7 * often[1]
    assert often[1] <= (START + EARNED * 1.0) / (COST - INCOME)


def test_what_asking_may_spend_of_what_was_saved_is_told() -> None:
    attention = Attention()
    assert attention.saved(1, 1.0) == 0.0, "nobody was asked for"
    attention.tick([1], COST)
    assert attention.saved(1, 2.0) == pytest.approx(EARNED * 2.0)
    assert attention.saved(1, -1.0) == 0.0
    assert attention.saved(1, 1.0) == 0.0, "what was lost comes first"
    assert attention.saved(1, 100.0) < 1.0, "credit has an end"
    attention.tick([2], INCOME)
    assert attention.saved(2, 1.0) == 0.0, "asking takes next to nothing, whatever was saved"


def test_what_costs_next_to_nothing_in_company_needs_nothing_of_what_was_saved() -> None:
    cost, company = 2 * INCOME, [1, 2, 3, 4, 5, 6, 7, 8]
    for requests, credit in ([1], EARNED), (company, 0.0):
        attention = Attention()
        attention.tick(requests, cost)
        assert attention.saved(1, 1.0) == pytest.approx(credit)


def test_long_losses_are_not_paid_for_for_ever() -> None:
    attention = Attention()
    attention.tick([1], COST)
    for _ in range(100):
        attention.saved(1, -1.0)
    asked_running(attention)
    attention.saved(1, OWED)
    assert asked_running(attention) <= 1, "what was lost comes first"
    attention.saved(1, 0.5 / EARNED)
    assert asked_running(attention) >= int(0.5 / COST), "no more of it than that"
