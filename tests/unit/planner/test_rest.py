"""Rounds in which nothing can happen are learnt from together, and nothing is lost by that."""

from __future__ import annotations

from foretoken.planner.attention import INCOME, LONGEST_REST, Attention
from foretoken.planner.rest import Rest
from foretoken.protocols import RequestView
from foretoken.types import Draft, Load, Outcome, Round, SamplingParams

ALONE = Load(1, 0, 0)


def view(number: int) -> RequestView:
    return RequestView(number, [1, 2, 3], SamplingParams(), 0, 3, "", ())


def plain(*requests: int) -> Round:
    outcomes = tuple((request, Outcome(3, (4,))) for request in requests)
    return Round(ALONE, len(requests), {}, 5.0, 0.1, outcomes)


def test_a_rest_ends_after_the_rounds_it_was_given() -> None:
    rest = Rest()
    rest.begin([view(1)], ALONE, lambda _: 2)
    assert [rest.goes_on([view(1)], ALONE) for _ in range(4)] == [True, True, False, False]


def test_rounds_of_a_rest_are_kept_in_order_and_given_back_once() -> None:
    rest = Rest()
    rest.begin([view(1)], ALONE, lambda _: 3)
    rounds = [plain(1), plain(1)]
    for measured in rounds:
        assert rest.goes_on([view(1)], ALONE)
        assert rest.keeps(measured)
    assert rest.end() == rounds
    assert rest.end() == []


def test_anybody_else_ends_it() -> None:
    for requests, load in (
        ([view(2)], ALONE),
        ([view(1), view(2)], Load(2, 0, 0)),
        ([view(1)], Load(1, 64, 0)),
    ):
        rest = Rest()
        rest.begin([view(1)], ALONE, lambda _: 8)
        assert not rest.goes_on(requests, load)
        assert not rest.keeps(plain(1))
        assert not rest.goes_on([view(1)], ALONE), "it does not begin again by itself"


def test_several_requests_never_rest() -> None:
    rest = Rest()
    rest.begin([view(1), view(2)], Load(2, 0, 0), lambda _: 8)
    assert not rest.goes_on([view(1), view(2)], Load(2, 0, 0))


def test_a_round_with_a_draft_is_learnt_from_at_once() -> None:
    rest = Rest()
    rest.begin([view(1)], ALONE, lambda _: 8)
    assert rest.goes_on([view(1)], ALONE)
    drafted = Round(ALONE, 3, {}, 9.0, 0.1, ((1, Outcome(3, (4,), Draft((4, 5), "suffix"), 1)),))
    assert not rest.keeps(drafted)


def test_attention_rests_exactly_until_it_would_say_yes() -> None:
    """Against an attention that is asked in every round."""
    for cost in (0.02, 0.05, 0.12, 0.3):
        asked, resting = Attention(), Attention()
        rounds = yes = 0
        while rounds < 400:
            said = asked.tick(1, cost)
            assert resting.tick(1, cost) == said
            yes += said
            rounds += 1
            if said:
                continue
            rest = resting.rest(1, cost)
            assert 0 <= rest <= LONGEST_REST
            for _ in range(rest):
                assert not asked.tick(1, cost)
                resting.rested(1)
                rounds += 1
        assert yes


def test_who_costs_next_to_nothing_never_rests() -> None:
    attention = Attention()
    assert attention.tick(1, INCOME)
    assert attention.rest(1, INCOME) == 0
    assert attention.rest(2, 0.5) == 0, "nor who is not known"
