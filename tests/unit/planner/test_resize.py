"""What a change of size takes: learnt from plain forwards side by side, and priced both ways."""

from __future__ import annotations

import pytest

from foredraft.planner.cost import CostCurve
from foredraft.planner.resize import FEWEST, MOST, Resize

EXTRA = 0.6
"""Milliseconds, where a plain forward takes 6."""


def ratio(rows: int) -> float:
    return 1.0 + 0.5 * (rows - 1)


def run(curve: CostCurve, *sizes: int, extra: float = EXTRA) -> None:
    """Rounds whose forwards have these sizes; each takes `extra` longer where the size changes."""
    before = None
    for rows in sizes:
        curve.tick()
        curve.add(rows, 6.0 * ratio(rows) + extra * (rows != before))
        before = rows


def learnt(extra: float = EXTRA) -> CostCurve:
    curve = CostCurve()
    run(curve, *[1, 1, 4, 1, 1, 8, 1, 1, 4, 4, 4, 1, 1, 2] * 4, 1, 1, extra=extra)
    return curve


def test_it_is_learnt_apart_from_the_curve() -> None:
    curve = learnt()
    assert curve.resize == pytest.approx(0.1)
    assert curve.single_ms == pytest.approx(6.0)
    assert [curve.ratio(rows) for rows in (2, 4, 8)] == pytest.approx([1.6, 2.6, 4.6]), "on the way there"


def test_a_single_draft_pays_for_both_ways() -> None:
    curve = learnt()
    assert curve.prices(1, 8)[:1] + curve.prices(1, 8)[3:4] == pytest.approx([1.0, 2.6 + 0.1])


def test_after_a_draft_going_back_is_paid_for_and_going_on_is_cheaper() -> None:
    curve = learnt()
    run(curve, 1, 4)
    prices = curve.prices(1, 8)
    assert prices[0] == pytest.approx(1.1)
    assert prices[3] == pytest.approx(2.6), "as many rows again"
    assert prices[7] == pytest.approx(4.6 + 0.1)


def test_what_follows_a_prompt_is_a_change() -> None:
    curve = learnt()
    curve.disturbed()
    assert curve.prices(1, 2)[0] == pytest.approx(1.1)


def test_where_nothing_changes_prices_are_the_curve() -> None:
    curve = learnt(extra=0.0)
    run(curve, 1, 4, extra=0.0)
    assert curve.resize == 0.0
    assert curve.prices(1, 8) == curve.ratios(1, 8)


def test_a_draft_must_be_better_to_pay_for_the_way_back() -> None:
    assert learnt().break_even(1.03) > learnt(extra=0.0).break_even(1.03)


def test_a_few_measurements_are_needed_and_a_stall_is_not_believed() -> None:
    resize = Resize()
    for first in [6.6] * (FEWEST - 1) + [60.0] + [6.6]:
        assert resize.value == 0.0 or resize.value == pytest.approx(0.1)
        resize.forward(4)
        resize.plain(first, 6.0, same=resize.forward(1))
        resize.plain(6.0, 6.0, same=resize.forward(1))
    assert resize.value == pytest.approx(0.1)
    for _ in range(30):
        resize.forward(4)
        resize.plain(60.0, 6.0, same=resize.forward(1))
        resize.plain(6.0, 6.0, same=resize.forward(1))
    assert resize.value == MOST


def test_a_seed_is_corrected_by_what_is_measured() -> None:
    curve = CostCurve()
    curve.seed({64: {1: 6.0, 4: 15.0}}, resize=0.4)
    assert curve.resize == 0.4
    run(curve, *[1, 1, 4] * 10)
    assert curve.resize == pytest.approx(0.1)
