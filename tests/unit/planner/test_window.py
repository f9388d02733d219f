"""The last of some measurements: what a list of them would say."""

from __future__ import annotations

from collections import deque
from statistics import fmean
from statistics import median as exact

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.planner.tables.window import WINDOW, Window, median

values = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60)


@given(values)
def test_the_median_of_a_list(those: list[float]) -> None:
    assert median(those) == median(deque(those)) == exact(those)


@given(values, st.integers(1, 20))
def test_a_window_is_the_end_of_a_list(those: list[float], most: int) -> None:
    window, kept = Window(most=most), deque[float](maxlen=most)
    for value in those:
        window.add(value)
        kept.append(value)
        assert window.median() == exact(kept)
    assert len(window) == len(kept)
    assert sorted(window.latest(3)) == sorted(list(kept)[-3:])
    outer = len(kept) // 4
    middle = sorted(kept)[outer : len(kept) - outer]
    assert window.middle_mean() == pytest.approx(fmean(middle), rel=1e-9, abs=1e-6)


@given(values, st.floats(0, 1e3))
def test_the_last_one_may_turn_out_to_be_more(those: list[float], late: float) -> None:
    window = Window(those)
    window.more(late)
    assert window.latest(1) == [those[-1] + late]
    assert window.median() == exact([*those[-WINDOW:-1], those[-1] + late])


@given(values, values)
def test_what_is_left_of_it_goes_on(those: list[float], further: list[float]) -> None:
    window, kept = Window(those), deque(sorted(those[-WINDOW:])[: len(those[-WINDOW:]) // 2], WINDOW)
    window.forget_dearer_half()
    assert len(window) == len(kept)
    for value in further:
        window.add(value)
        kept.append(value)
        assert window.median() == exact(kept)


def test_of_nothing_there_is_no_mean() -> None:
    assert len(Window()) == 0
    assert Window().middle_mean() == 0.0
    assert Window([1.0, 2.0, 3.0]).latest(2) == [3.0, 2.0]
