"""What a draft is expected to cost among several requests, before it was seen."""

from __future__ import annotations

import pytest

from foredraft.planner.adaptive import AdaptivePlanner
from foredraft.planner.company import InPasses, company_of
from foredraft.planner.cost import CostCurve
from foredraft.planner.ratios import Ratios
from foredraft.protocols import RequestView
from foredraft.types import Load, Outcome, Round
from planner_rounds import PLAIN_MS, chain, teach

ALONE = {1: 1.0, 2: 1.1, 3: 1.2, 4: 1.4, 8: 2.2, 16: 3.2, 32: 6.0, 64: 12.0}


def curve_of(points: dict[int, float]) -> Ratios:
    made = Ratios()
    made.seed(points, 0)
    return made


def alone(rows: int) -> float:
    return curve_of(ALONE).ratio(rows, 0)


def company(decoding: int) -> InPasses:
    made = InPasses(curve_of(ALONE), 0)
    made.among(decoding)
    return made


def test_the_rows_of_one_draft_are_another_pass() -> None:
    four = company(4)
    assert four.ratio(4, 0) == pytest.approx(1.4)
    assert four.ratio(4 + 2, 0) == pytest.approx(1.4 + 1.1)
    assert four.ratio(4 + 16, 0) == pytest.approx(1.4 + 3.2)


def test_so_are_those_of_each_further_one() -> None:
    assert company(4).together([2, 0, 4, 0], 0) == pytest.approx(1.4 + 1.1 + 1.4)
    assert company(4).together([0, 0, 0, 0], 0) == pytest.approx(1.4)


def test_or_all_are_filled_up_where_that_is_cheaper() -> None:
    assert company(4).ratio(4 + 1, 0) == pytest.approx(2.2), "two rows each, not 1.4 + 1.0"
    assert company(4).together([3, 3, 2, 1], 0) == pytest.approx(3.2), "four rows each"


def test_nothing_is_filled_up_to_more_rows_than_were_ever_measured() -> None:
    assert company(16).together([4] * 16, 0) == pytest.approx(3.2 + 16 * 1.4)


def test_what_passes_took_is_learnt_for_each_of_them() -> None:
    four = company(4)
    for now in range(20):
        four.learn(4, 1.6, now)
        four.learn(4 + 10, 1.6 + 2.0 * (1.1 + 2.2), now, [0, 2, 8, 0])
    assert four.ratio(4, 20) == pytest.approx(1.6)
    assert four.ratio(4 + 8, 20) == pytest.approx(1.6 + 4.4)
    assert four.together([8, 2], 20) == pytest.approx(1.6 + 4.4 + 2.2)


def test_what_filled_up_forwards_took_is_learnt_apart() -> None:
    four = company(4)
    for now in range(20):
        four.learn(4 + 10, 4.0, now, [3, 3, 3, 1])
    assert four.together([3, 3, 3, 1], 20) == pytest.approx(4.0)
    assert four.ratio(4 + 3, 20) == pytest.approx(1.4 + 1.2), "a draft alone costs what it did"


def test_a_larger_company_begins_with_what_a_draft_adds_in_a_smaller_one() -> None:
    two = company(2)
    for now in range(20):
        two.learn(2 + 8, 1.1 + 1.5, now, [8])
    eight = InPasses(two, 20)
    eight.among(8)
    assert eight.ratio(8, 20) == pytest.approx(2.2)
    assert eight.ratio(8 + 8, 20) == pytest.approx(2.2 + 1.5)


@pytest.mark.parametrize("ragged", [True, False])
def test_a_company_not_seen_yet(ragged: bool) -> None:
    curve = CostCurve(ragged=ragged)
    curve.seed({192: {rows: PLAIN_MS * ratio for rows, ratio in ALONE.items()}})
    curve.focus(100, 4)
    assert curve.ratio(4) == pytest.approx(1.4)
    assert curve.ratio(4 + 4) == pytest.approx(2.2 if ragged else 2.8)
    assert curve.turn(4) == pytest.approx(0.35)
    curve.focus(100, 1)
    assert curve.ratio(8) == pytest.approx(2.2), "alone nothing has changed"


def test_what_was_measured_in_company_is_carried_on_to_a_larger_one() -> None:
    curve = CostCurve(ragged=False)
    curve.seed({192: {rows: PLAIN_MS * ratio for rows, ratio in ALONE.items()}})
    curve.focus(100, 4)
    for _ in range(20):
        for rows, ratio in ((4, 1.4), (8, 1.4 + 1.1)):
            curve.tick()
            curve.add(rows, PLAIN_MS * ratio, plain=rows == 4, drafts=[4] if rows > 4 else [])
    assert curve.ratio(8) == pytest.approx(2.5, abs=0.05)
    curve.focus(100, 5)
    assert curve.ratio(5 + 4) - curve.ratio(5) == pytest.approx(1.1, abs=0.05)


@pytest.mark.parametrize(
    ("ragged", "length", "drafts"), [(True, 2, True), (False, 2, False), (False, 32, True)]
)
def test_a_short_draft_for_one_of_four_is_verified_only_where_it_shares_the_pass(
    ragged: bool, length: int, drafts: bool
) -> None:
    """With everything right, 6 tokens for 1.8 are better than 4 for 1.4, and for 2.5 they are not."""
    planner = AdaptivePlanner(ragged=ragged)
    teach(planner, alone)
    views = [RequestView(number, [0], prompt_length=1) for number in range(4)]
    load = Load(1, 0, 1)
    for _ in range(40):  # it knows that the drafter is right, and what was won may be lost
        draft = chain(32, match_length=8)
        planner.choose(views[:1], [[draft]], load)
        outcome = Outcome(len(views[0].tokens), (*draft.tokens, 7), draft, 32)
        views[0].tokens.extend(outcome.tokens)
        planner.observe(Round(load, 33, {}, PLAIN_MS * alone(33), 0.0, ((0, outcome),)))
    together = Load(4, 0, 1)
    planner.limits(views, ["s"], together)
    chosen = planner.choose(views, [[chain(length, match_length=8)], [], [], []], together)
    assert [draft is not None for draft in chosen] == [drafts, False, False, False]


@pytest.mark.parametrize("ragged", [True, False])
def test_as_many_rows_of_each_request_are_one_pass(ragged: bool) -> None:
    curve = CostCurve(ragged=ragged)
    curve.seed({192: {rows: PLAIN_MS * ratio for rows, ratio in ALONE.items()}})
    curve.focus(100, 4)
    assert curve.even(4, 1) == pytest.approx(1.4)
    assert curve.even(4, 4) == pytest.approx(3.2)
    assert curve.even(4, 16) == pytest.approx(12.0)


def test_companies_of_many_share_a_curve() -> None:
    assert company_of(1) == 0
    assert company_of(9) == company_of(16) != company_of(17)
