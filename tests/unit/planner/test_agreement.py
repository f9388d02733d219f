"""Agreement: where two drafters say the same, either is worth more; where they differ, one is wrong."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foredraft.planner.tables.agreement import DIFFERENT, SAME, Agreement, log_odds
from foredraft.planner.tables.calibration import Survival
from foredraft.planner.tables.cells import Cells
from foredraft.planner.tables.lexical import NONE, Lexical
from foredraft.planner.tables.reading import Reading, meet
from foredraft.types import Draft, Outcome


def said(source: str, *tokens: int, confidence: float = 0.6) -> Draft:
    return Draft(tokens, source, confidence=(confidence,) * len(tokens))


Token = tuple[str, float, float, bool]
"""Of a token beside another draft's: its source, both estimates, its own first, and whether both are one."""


def chance(agreement: Agreement, token: Token) -> float:
    source, own, other, same = token
    return agreement.chance(agreement.place(source), log_odds(own), log_odds(other), same)


def add(agreement: Agreement, token: Token, right: bool) -> None:
    source, own, other, same = token
    agreement.add(agreement.place(source), log_odds(own), log_odds(other), same, right)


def met(*drafts: Draft) -> list[Reading]:
    """Readings of drafts that know of each other."""
    tables = Cells(), Agreement(), Lexical()
    readings = [Reading(*tables) for _ in drafts]
    for reading, draft in zip(readings, drafts, strict=True):
        reading.begin(draft, NONE)
    meet(readings)
    return readings


ROUNDED = 1e-12
"""Of numbers that differ in their last digits only: products of ratios, and the same less next to nothing."""

TREE = Draft((1, 2, 3), "t", parents=(-1, -1, 0))

chains = st.lists(
    st.builds(said, st.sampled_from("abc"), st.integers(0, 2), st.integers(0, 2), confidence=st.floats(0, 1)),
    min_size=1,
    max_size=3,
    unique_by=lambda draft: draft.source,
)


def test_another_one_says_the_same_or_something_else() -> None:
    one, other = met(said("a", 1, 2, 3, 4), said("b", 1, 2, 9, 4, confidence=0.9))
    assert one.company == other.company == 3, "from the first difference on they go on after different texts"
    assert [one.agrees(i) for i in range(3)] == [other.agrees(i) for i in range(3)] == [True, True, False]


def test_who_was_wrong_before_has_nothing_more_to_say() -> None:
    first, second, third = met(said("a", 1, 2, 3, 4), said("b", 1, 9, 3, confidence=0.9), said("c", 1, 2))
    assert first.company == 2, "b is out after the second, c at its end"
    for reading in (first, second, third):
        assert [reading.agrees(i) for i in range(reading.company)] == [True, False], "b is the surest"


def test_of_several_others_the_surest_counts() -> None:
    first, *_ = met(said("a", 1, 2), said("b", 1, 9, confidence=0.9), said("c", 1, 2, confidence=0.5))
    assert [first.agrees(i) for i in range(first.company)] == [True, False]
    first, *_ = met(said("a", 1, 2), said("b", 1, 9, confidence=0.5), said("c", 1, 2, confidence=0.9))
    assert [first.agrees(i) for i in range(first.company)] == [True, True]


def test_nobody_stands_beside_a_single_draft_or_a_tree() -> None:
    assert [reading.company for reading in (*met(said("a", 1, 2)), *met(said("a", 1), TREE))] == [0, 0, 0]
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
        assert all(a <= b * (1 + ROUNDED) for a, b in zip(low, high, strict=True))


@pytest.mark.parametrize("same", [True, False])
def test_what_agreement_is_worth_follows_the_text(same: bool) -> None:
    token, opposite = ("a", 0.7, 0.7, same), ("a", 0.7, 0.7, not same)
    agreement = Agreement()
    at_first = chance(agreement, token)
    for right in (True, False):
        for _ in range(2000):
            add(agreement, token, right)
        assert (chance(agreement, token) > 0.9) if right else (chance(agreement, token) < 0.1)
    assert chance(Agreement(), token) == at_first
    assert chance(agreement, ("b", 0.7, 0.7, same)) == at_first, "of that source only"
    assert chance(agreement, opposite) == chance(Agreement(), opposite)


def test_only_tokens_that_were_reached_are_learnt_from() -> None:
    survival = Survival()
    survival.remember(1, [said("a", 1, 2), said("b", 1, 2)])
    survival.score(1, Outcome(5, (9,)))
    learnt = survival.agreement.export()
    assert set(learnt) == {"a|1", "b|1"}
    assert learnt["a|1"][0] < SAME[0], "the first was wrong, of the second nothing is known"
    once = chance(survival.agreement, ("a", 0.6, 0.6, True))
    other = Survival()
    other.remember(1, [said("a", 1), said("b", 1)])
    other.score(1, Outcome(5, (9,)))
    assert chance(other.agreement, ("a", 0.6, 0.6, True)) == once


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
            token = (source, 0.8, 0.7, same)
            now = chance(again.agreement, token)
            assert now == pytest.approx(chance(survival.agreement, token), abs=1e-3)
            assert now != pytest.approx(chance(Agreement(), token), abs=1e-3)
    assert set(learnt["agreement"]) == {"a|0", "a|1", "b|c|0", "b|c|1"}


def test_what_does_not_look_like_weights_is_left_out() -> None:
    agreement = Agreement()
    agreement.restore({
        "a|2": [0, 1, 1], "|1": [0, 1, 1], "a": [0, 1, 1], "b|1": [1, 2], "c|1": "x", "d|0": [0, "1", 1],
        "e|1": [0, 1e9, 1], "f|1": [0, float("nan"), 1], "g|0": None, "h|1": [0, 1, 0.5],
    })  # fmt: skip
    assert agreement.export() == {"h|1": [0, 1, 0.5]}
    different = chance(agreement, ("a", 0.5, 0.5, False))
    assert different == chance(Agreement(), ("a", 0.5, 0.5, False))
    assert different < 0.5 < chance(agreement, ("a", 0.7, 0.7, True))
    assert DIFFERENT[0] < 0 <= SAME[0]
