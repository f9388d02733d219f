"""The batch cost curve: measured where it was, sensible elsewhere, and deaf to stalls."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foredraft.planner.company import company_of
from foredraft.planner.cost import CostCurve, band_of, depth_of
from foredraft.planner.monotone import TOLERANCE
from foredraft.planner.pace import STALE
from foredraft.planner.ratios import OUT_OF_DATE, PRIOR_SLOPE, SURE, Ratios

ratios = st.dictionaries(st.integers(2, 40), st.floats(1.0, 20.0), min_size=1, max_size=10)


def curve_of(points: dict[int, float], single: float = 10.0) -> CostCurve:
    """A curve of these ratios, measured often enough to be believed."""
    curve = CostCurve()
    curve.add(1, single)
    for rows, ratio in [*points.items()] * SURE:
        curve.add(1, single)
        curve.add(rows, single * ratio)
    return curve


def rounds(curve: CostCurve, *sizes: int, times: int = 1, slower: float = 1.0) -> None:
    """Rounds of decoding whose forwards have these sizes, on a machine that is `slower`."""
    for _ in range(times):
        for rows in sizes:
            curve.tick()
            curve.add(rows, slower * 10.0 * (1.0 + 0.2 * (rows - 1)))


def test_nothing_is_known_before_a_plain_forward() -> None:
    curve = CostCurve()
    assert not curve.known
    curve.add(4, 20.0)
    assert (curve.known, curve.single_ms) == (False, 0.0)
    assert curve.ratio(4) == 1.0 + 3 * PRIOR_SLOPE, "there was nothing to compare it with"
    assert curve_of({}).known


@given(ratios)
@settings(deadline=None)
def test_what_was_measured_is_what_it_says(points: dict[int, float]) -> None:
    """Where it rises; a curve that falls is a measurement error (see test_monotone)."""
    rising = dict(zip(sorted(points), sorted(points.values()), strict=True))
    curve = curve_of(rising)
    assert curve.single_ms == pytest.approx(10.0)
    assert curve.ratio(1) == 1.0
    for rows, ratio in rising.items():
        assert curve.ratio(rows) == pytest.approx(ratio)


@given(ratios)
@settings(deadline=None)
def test_more_rows_hardly_take_less_time(points: dict[int, float]) -> None:
    curve = curve_of(points)
    costs = [curve.ratio(rows) for rows in range(1, 65)]
    assert min(costs) >= 1.0
    assert all(low <= TOLERANCE * high + 1e-9 for low, high in combinations(costs, 2))
    assert all(cost <= max(1.0, *points.values()) + 1e-9 for cost in costs[: max(points)])


def test_steps_stay_steps() -> None:
    curve = curve_of({2: 1.1, 3: 1.1, 4: 1.1, 5: 3.0, 8: 3.0, 9: 6.0})
    assert [curve.ratio(rows) for rows in range(1, 10)] == pytest.approx([1, 1.1, 1.1, 1.1, 3, 3, 3, 3, 6])


def test_before_anything_else_is_measured_more_rows_cost_more() -> None:
    curve = curve_of({})
    costs = [curve.ratio(rows) for rows in range(1, 70)]
    assert costs == sorted(set(costs))
    assert costs[1] == pytest.approx(1 + PRIOR_SLOPE)


def test_beyond_the_largest_it_never_gets_cheaper() -> None:
    curve = curve_of({4: 2.5, 8: 5.5})
    costs = [curve.ratio(rows) for rows in range(8, 65)]
    assert costs == sorted(costs)
    assert costs[-1] > costs[0]
    cheap = curve_of({4: 0.9})
    assert cheap.ratio(64) >= cheap.ratio(4)


@pytest.mark.parametrize("rows", [1, 4])
def test_a_tenfold_stall_changes_nothing(rows: int) -> None:
    curve = curve_of({4: 2.0})
    for _ in range(6):
        curve.add(1, 10.0)
        curve.add(4, 20.0)
    before = (curve.single_ms, curve.ratio(4))
    for _ in range(3):
        curve.add(rows, 200.0)
    assert (curve.single_ms, curve.ratio(4)) == before


def test_it_follows_a_lasting_change() -> None:
    curve = curve_of({4: 2.0})
    for _ in range(30):
        curve.add(1, 20.0)
        curve.add(4, 70.0)
    assert curve.single_ms == 20.0
    assert curve.ratio(4) == pytest.approx(3.5)


def test_ratios_outlive_a_change_of_the_plain_cost() -> None:
    """A longer context makes every forward slower; what a row more costs stays much the same."""
    curve = curve_of({4: 2.0})
    for _ in range(30):
        curve.add(1, 40.0)
    assert curve.ratio(4) == pytest.approx(2.0)


def test_a_size_seen_in_a_stall_only_is_bounded_by_larger_ones() -> None:
    curve = curve_of({2: 1.2, 8: 2.4, 16: 4.0})
    rounds(curve, 1)
    rounds(curve, 4, times=3, slower=10.0)
    assert curve.ratio(4) <= 4.0
    rounds(curve, 1, 3, 5, times=100)
    assert curve.ratio(4) <= curve.ratio(5) == pytest.approx(1.8)


def test_what_was_measured_before_a_stall_is_not_compared_with_what_comes_in_it() -> None:
    curve = curve_of({n: 1.0 + 0.2 * (n - 1) for n in range(2, 12)})
    rounds(curve, 1)
    rounds(curve, 4, 9, 6, times=40, slower=10.0)
    rounds(curve, 1, 4, 9, 1, 6, times=20, slower=10.0)
    rounds(curve, 5, 7, times=20)
    assert [curve.ratio(n) for n in (4, 6, 9)] == pytest.approx([1.6, 2.0, 2.6])


def test_a_change_that_stays_is_believed_however_large() -> None:
    curve = curve_of({4: 1.6})
    for _ in range(40):
        curve.tick()
        curve.add(1, 10.0)
        curve.tick()
        curve.add(4, 100.0)
    assert curve.ratio(4) == pytest.approx(10.0)


def test_what_is_out_of_date_is_tried_again() -> None:
    """A size that was dear when it was last measured would otherwise never be measured again."""
    curve = curve_of({4: 12.0, 8: 12.0})
    rounds(curve, 1, times=OUT_OF_DATE // 2)
    assert curve.ratio(4) == pytest.approx(12.0)
    rounds(curve, 1, times=OUT_OF_DATE)
    assert curve.ratio(4) == pytest.approx(1 + 3 * PRIOR_SLOPE)
    rounds(curve, 4)
    assert curve.ratio(4) == pytest.approx(1.6)


def test_drafts_all_the_time_leave_the_ratios_and_follow_the_pace() -> None:
    """V(1) and V(n) grow alike with the context; nothing plain is measured meanwhile."""
    curve = curve_of({4: 1.6})
    rounds(curve, 1)
    for depth in range(100):
        rounds(curve, 4, slower=1.0 + 0.01 * depth)
    assert curve.ratio(4) == pytest.approx(1.6, rel=0.03)
    assert curve.single_ms == pytest.approx(10.0 * (1.0 + 0.01 * 92), rel=0.03)


def test_a_plain_forward_is_due_now_and_then() -> None:
    curve = curve_of({4: 1.6})
    due = [curve.stale]
    rounds(curve, 4, times=STALE)
    due.append(curve.stale)
    rounds(curve, 1)
    assert [*due, curve.stale] == [False, True, False]


def test_plain_forwards_of_several_requests_are_a_measure_too() -> None:
    curve = curve_of({4: 1.6, 8: 2.4})
    for _ in range(40):
        curve.tick()
        curve.add(4, 32.0, plain=True)
        curve.tick()
        curve.add(8, 96.0)
    assert curve.ratio(8) / curve.ratio(4) == pytest.approx(3.0)
    assert not curve.stale


def test_many_sizes_do_not_make_it_slow() -> None:
    """The work of a round is bounded by the sizes kept, and those are few."""
    curve = CostCurve()
    for rows in range(1, 600):
        rounds(curve, 1, rows)
    assert curve.ratio(512) == pytest.approx(1 + 0.2 * 511, rel=0.05)
    assert isinstance(curve._ratios, Ratios)
    assert len(curve._ratios._known) < 64 + 600 // 16 + 2


@pytest.mark.parametrize("slope", [0.05, 0.3, 0.7])
def test_break_even_is_the_chance_with_which_the_best_draft_just_pays(slope: float) -> None:
    curve = curve_of({rows: 1 + slope * (rows - 1) for rows in (2, 4, 8, 16, 32, 64)})
    chance = curve.break_even(1.0)

    def best(each: float) -> float:
        return max(sum(each**i for i in range(k + 1)) / curve.ratio(1 + k) for k in range(1, 64))

    assert best(chance + 0.002) >= 1.0
    assert best(chance - 0.002) < 1.0


def test_where_not_even_certain_tokens_pay_break_even_is_certainty() -> None:
    assert curve_of({2: 2.5, 4: 5.0, 64: 80.0}).break_even(1.03) == 1.0


def test_every_band_has_a_depth_of_its_own() -> None:
    assert [band_of(depth_of(band)) for band in range(12)] == list(range(12))


def test_a_depth_begins_as_the_nearest_one_is_and_learns_by_itself() -> None:
    curve = curve_of({2: 1.5, 8: 3.0})
    curve.focus(4000)
    assert curve.ratio(8) == pytest.approx(3.0)
    for _ in range(10):
        curve.add(1, 25.0)
        curve.add(8, 150.0)
    assert curve.ratio(8) == pytest.approx(6.0)
    curve.focus(100)
    assert curve.ratio(8) == pytest.approx(3.0)


def test_what_is_stored_begins_where_it_ended() -> None:
    curve = curve_of({2: 1.5, 8: 3.0})
    curve.focus(4000)
    curve.add(8, 40.0)
    again = CostCurve()
    again.seed(curve.curve())
    assert not again.known, "how fast the machine is now is measured"
    for depth in (0, 4000):
        curve.focus(depth)
        again.focus(depth)
        assert [again.ratio(n) for n in range(1, 20)] == pytest.approx([curve.ratio(n) for n in range(1, 20)])


def test_a_token_must_be_as_likely_as_the_cheapest_row_is_dear() -> None:
    assert curve_of({n: 1.0 + 0.3 * (n - 1) for n in (2, 4, 8, 16, 32, 64)}).row_price() == pytest.approx(0.3)
    flattening = curve_of({8: 3.0, 16: 4.0, 32: 5.6, 64: 8.8})
    assert flattening.row_price() == pytest.approx(0.1)
    stepped = curve_of({n: 1.0 + 1.2 * ((n + 3) // 4) for n in range(2, 65)})
    assert stepped.row_price() == pytest.approx(0.3), "a row within a step is free, and no step is"


def test_company_has_a_curve_of_its_own() -> None:
    curve = curve_of({2: 1.5, 4: 1.8})
    curve.focus(0, decoding=2)
    assert curve.ratio(4) == pytest.approx(1.8), "nothing else was seen yet"
    for _ in range(12):
        curve.tick()
        curve.add(2, 15.0, plain=True)
        curve.add(4, 32.0)
    assert curve.ratio(4) == pytest.approx(3.2)
    assert curve.ratio(2) == pytest.approx(1.5)
    curve.focus(0, decoding=1)
    assert curve.ratio(4) == pytest.approx(1.8)
    curve.focus(0, decoding=4)
    assert curve.ratio(4) == pytest.approx(3.2), "four requests are like two rather than one"
    assert curve.curve() == {192: {1: 10.0, 2: pytest.approx(15.0), 4: pytest.approx(18.0)}}


def test_a_plain_forward_of_four_is_not_one_of_three_with_a_draft() -> None:
    curve = curve_of({2: 1.5, 3: 1.6, 4: 1.8})
    for _ in range(12):
        curve.focus(0, decoding=4)
        curve.tick()
        curve.add(4, 18.0, plain=True)
        curve.focus(0, decoding=3)
        curve.tick()
        curve.add(3, 16.0, plain=True)
        curve.add(4, 30.0)
    assert curve.ratio(4) == pytest.approx(3.0)
    curve.focus(0, decoding=4)
    assert curve.ratio(4) == pytest.approx(1.8)


def test_large_companies_share_curves() -> None:
    companies = [company_of(n) for n in range(1, 65)]
    assert companies[:8] == list(range(8))
    assert companies == sorted(companies)
    assert sorted(set(companies[8:])) == [8, 9, 10]


def test_one_request_never_begins_with_what_several_took() -> None:
    curve = curve_of({4: 1.8})
    curve.focus(4000, decoding=3)
    for _ in range(12):
        curve.tick()
        curve.add(4, 32.0)
    curve.focus(4000, decoding=1)
    assert curve.ratio(4) == pytest.approx(1.8)
