"""The batch cost curve: measured where it was, sensible elsewhere, and deaf to stalls."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretoken.planner.cost import PRIOR_SLOPE, CostCurve

ratios = st.dictionaries(st.integers(2, 40), st.floats(1.0, 20.0), min_size=1, max_size=10)


def curve_of(points: dict[int, float], single: float = 10.0) -> CostCurve:
    curve = CostCurve()
    curve.add(1, single)
    for rows, ratio in points.items():
        curve.add(rows, single * ratio)
    return curve


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
    curve = curve_of(points)
    assert curve.single_ms == 10.0
    assert curve.ratio(1) == 1.0
    for rows, ratio in points.items():
        assert curve.ratio(rows) == pytest.approx(ratio)


@given(ratios, st.integers(1, 60))
@settings(deadline=None)
def test_between_measurements_it_lies_between_them(points: dict[int, float], rows: int) -> None:
    curve = curve_of(points)
    known = {1: 1.0, **points}
    below = known[max(n for n in known if n <= rows)]
    above = known[min((n for n in known if n >= rows), default=max(known))]
    assert curve.ratio(rows) >= min(below, above) - 1e-9
    if rows <= max(known):
        assert curve.ratio(rows) <= max(below, above) + 1e-9


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
