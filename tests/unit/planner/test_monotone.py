"""A curve that hardly falls, made of measurements that do."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from foredraft.planner.monotone import SURE, TOLERANCE, Point, monotone

points = st.lists(
    st.tuples(st.integers(1, 500), st.floats(0.1, 50.0), st.integers(1, 15)), unique_by=lambda point: point[0]
).map(sorted)


@given(points)
def test_it_falls_by_no_more_than_the_tolerance_and_has_a_value_for_every_point(points: list[Point]) -> None:
    result = monotone(points)
    assert [rows for rows, _ in result] == [rows for rows, _, _ in points]
    assert all(low[1] <= TOLERANCE * high[1] for low, high in combinations(result, 2))
    assert {value for _, value in result} <= {value for _, value, _ in points}, "nothing is made up"


@given(points)
def test_what_rises_stays(points: list[Point]) -> None:
    values = sorted(value for _, value, _ in points)
    rising = [(rows, value, weight) for (rows, _, weight), value in zip(points, values, strict=True)]
    assert monotone(rising) == [(rows, value) for rows, value, _ in rising]


def test_one_bad_measurement_gives_way_in_whichever_direction_it_is_wrong() -> None:
    assert monotone([(2, 1.2, 5), (3, 16.0, 2), (4, 1.6, 5)]) == [(2, 1.2), (3, 1.6), (4, 1.6)]
    low = monotone([(2, 1.2, 5), (3, 1.4, 5), (8, 0.2, 1), (9, 2.6, 1)])
    assert low == [(2, 1.2), (3, 1.4), (8, 1.4), (9, 2.6)]
    assert monotone([]) == []


def test_a_step_of_the_kernels_stays() -> None:
    """Measured, Q4_0 on a CPU: four rows at a time, so 8 rows take less than 7."""
    points = [(4, 2.0, 9), (5, 2.67, 9), (6, 3.13, 9), (7, 3.56, 9), (8, 2.85, 9)]
    assert monotone(points) == [(rows, value) for rows, value, _ in points]


def test_what_was_measured_seldom_is_no_dearer_than_a_larger_batch() -> None:
    """Measured in a busy moment: as it was too dear to be used, it was never measured again (F16, 4 rows)."""
    few = SURE - 1
    points = [(2, 1.13, 15), (4, 1.92, 1), (5, 1.63, 15), (8, 2.4, few), (10, 2.2, few), (16, 4.0, 15)]
    assert monotone(points) == [(2, 1.13), (4, 1.63), (5, 1.63), (8, 2.2), (10, 2.2), (16, 4.0)]
