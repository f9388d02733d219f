"""Agreement: where two drafters say the same, either is worth more; where they differ, one is wrong."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretoken.planner.agreement import DIFFERENT, SAME, Agreement, Company, beside, shared
from foretoken.planner.calibration import Survival
from foretoken.types import Draft, Outcome


def said(source: str, *tokens: int, confidence: float = 0.6) -> Draft:
    return Draft(tokens, source, confidence=(confidence,) * len(tokens))


def company(source: str, *tokens: tuple[float, float, bool]) -> Company:
    """Tokens of a source, as (its own estimate, the other's, whether that is the same one)."""
    made = Company(source)
    for own, other, same in tokens:
        made.add(own, other, same=same)
    return made


def parts(found: Company) -> tuple[str, list[float], list[float], list[bool]]:
    return found.source, found.own, found.other, found.same


def chance(agreement: Agreement, source: str, own: float, other: float, *, same: bool) -> float:
    return agreement.chance(company(source, (own, other, same)), 0)


TREE = Draft((1, 2, 3), "t", parents=(-1, -1, 0))

chains = st.lists(
    st.builds(said, st.sampled_from("abc"), st.integers(0, 2), st.integers(0, 2), confidence=st.floats(0, 1)),
    min_size=1,
    max_size=3,
    unique_by=lambda draft: draft.source,
)


def test_another_one_says_the_same_or_something_else() -> None:
    drafts = [said("a", 1, 2, 3), said("b", 1, 2, 9, 3)]
    assert shared(drafts) == 3
    chances = [[0.5, 0.6, 0.7], [0.8, 0.4, 0.3]]
    expected = company("a", (0.5, 0.8, True), (0.6, 0.4, True), (0.7, 0.3, False))
    assert parts(beside(0, drafts, chances)) == parts(expected)
    assert expected.own[0] == 0.0 < expected.own[1], "log-odds"
    assert beside(1, drafts, chances).same == [True, True, False]


def test_who_was_wrong_before_has_nothing_more_to_say() -> None:
    drafts = [said("a", 1, 2, 3), said("b", 1, 9, 3), said("c", 1, 2)]
    chances = [[0.5] * 3, [0.9] * 3, [0.6] * 2]
    expected = company("a", (0.5, 0.9, True), (0.5, 0.9, False))
    assert parts(beside(0, drafts, chances)) == parts(expected), "b is out after the second, c at its end"
    assert parts(beside(2, drafts, chances)) == parts(company("c", (0.6, 0.9, True), (0.6, 0.9, False)))


def test_nobody_stands_beside_a_single_draft_or_a_tree() -> None:
    assert shared([said("a", 1, 2)]) == shared([said("a", 1), TREE]) == shared([]) == 0
    alone, tree = Survival().estimates([said("a", 1, 3), TREE])
    assert alone == Survival().estimate(said("a", 1, 3))
    assert tree == Survival().estimate(TREE)


def test_agreement_raises_an_estimate_and_contradiction_lowers_it() -> None:
    survival = Survival()
    [alone] = survival.estimates([said("a", 1, 2)])
    agreed, _ = survival.estimates([said("a", 1, 2), said("b", 1, 2)])
    disputed, _ = survival.estimates([said("a", 1, 2), said("b", 9)])
    assert disputed[0] < alone[0] < agreed[0]
    assert disputed[1] / disputed[0] == pytest.approx(alone[1] / alone[0]), "b says nothing of the rest"


@given(drafts=chains, caution=st.floats(0, 3), rounds=st.lists(st.tuples(*[st.integers(0, 2)] * 2)))
@settings(deadline=None)
def test_estimates_are_probabilities_that_fall_along_a_draft(
    drafts: list[Draft], caution: float, rounds: list[tuple[int, int]]
) -> None:
    survival = Survival()
    for tokens in rounds:
        survival.remember(1, drafts)
        survival.score(1, Outcome(5, tokens))
    for draft, estimate in zip(drafts, survival.estimates(drafts, caution), strict=True):
        assert len(estimate) == len(draft)
        assert all(0.0 <= value <= 1.0 for value in estimate)
        assert estimate == sorted(estimate, reverse=True)
    plain = survival.estimates(drafts)
    for low, high in zip(survival.estimates(drafts, caution), plain, strict=True):
        assert all(a <= b for a, b in zip(low, high, strict=True))


@pytest.mark.parametrize("same", [True, False])
def test_what_agreement_is_worth_follows_the_text(same: bool) -> None:
    token = company("a", (0.7, 0.7, same))
    agreement = Agreement()
    at_first = agreement.chance(token, 0)
    for right in (True, False):
        for _ in range(2000):
            agreement.add(token, 0, right)
        assert (agreement.chance(token, 0) > 0.9) if right else (agreement.chance(token, 0) < 0.1)
    assert Agreement().chance(token, 0) == at_first
    assert chance(agreement, "b", 0.7, 0.7, same=same) == at_first, "of that source only"
    other = company("a", (0.7, 0.7, not same))
    assert agreement.chance(other, 0) == Agreement().chance(other, 0)


def test_only_tokens_that_were_reached_are_learnt_from() -> None:
    survival = Survival()
    survival.remember(1, [said("a", 1, 2), said("b", 1, 2)])
    survival.score(1, Outcome(5, (9,)))
    learnt = survival.agreement.export()
    assert set(learnt) == {"a|1", "b|1"}
    assert learnt["a|1"][0] < SAME[0], "the first was wrong, of the second nothing is known"
    once = chance(survival.agreement, "a", 0.6, 0.6, same=True)
    other = Survival()
    other.remember(1, [said("a", 1), said("b", 1)])
    other.score(1, Outcome(5, (9,)))
    assert chance(other.agreement, "a", 0.6, 0.6, same=True) == once


def test_what_was_learnt_is_kept() -> None:
    survival = Survival()
    drafts = [said("a", 1, 2, 3), said("b|c", 1, 2, 9)]
    for tokens in ((1, 2, 3, 4), (1, 2, 9, 4), (1, 5)) * 20:
        survival.remember(1, drafts)
        survival.score(1, Outcome(5, tokens))
    learnt = json.loads(json.dumps(survival.knowledge()))
    again = Survival()
    again.recall(learnt)
    for source in ("a", "b|c"):
        for same in (True, False):
            token = company(source, (0.8, 0.7, same))
            now = again.agreement.chance(token, 0)
            assert now == pytest.approx(survival.agreement.chance(token, 0), abs=1e-3)
            assert now != pytest.approx(Agreement().chance(token, 0), abs=1e-3)
    assert set(learnt["agreement"]) == {"a|0", "a|1", "b|c|0", "b|c|1"}


def test_what_does_not_look_like_weights_is_left_out() -> None:
    agreement = Agreement()
    agreement.restore({
        "a|2": [0, 1, 1], "|1": [0, 1, 1], "a": [0, 1, 1], "b|1": [1, 2], "c|1": "x", "d|0": [0, "1", 1],
        "e|1": [0, 1e9, 1], "f|1": [0, float("nan"), 1], "g|0": None, "h|1": [0, 1, 0.5],
    })  # fmt: skip
    assert agreement.export() == {"h|1": [0, 1, 0.5]}
    different = chance(agreement, "a", 0.5, 0.5, same=False)
    assert different == chance(Agreement(), "a", 0.5, 0.5, same=False)
    assert different < 0.5 < chance(agreement, "a", 0.7, 0.7, same=True)
    assert DIFFERENT[0] < 0 <= SAME[0]
