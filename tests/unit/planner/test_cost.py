"""V(n): as measured where it was, sensible elsewhere, and not misled by stalls."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from itertools import accumulate, combinations, pairwise
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foredraft.bench.curves import shipped_curves
from foredraft.planner.cost import (
    FEW,
    NEAR_ROUNDS,
    OUTDATED_ROUNDS,
    PRIOR_SLOPE,
    STALE_ROUNDS,
    TOLERANCE,
    WINDOW,
    CostCurve,
    RelativeCosts,
    pooled,
)
from foredraft.planner.cost_key import SHALLOW_TOKENS, band_of, batch_class, depth_of
from foredraft.types import Draft, Load, Outcome, Round

PLAIN_MS = 10.0
Truth = Callable[[int], float]
ALONE = {1: 1.0, 2: 1.1, 3: 1.2, 4: 1.4, 8: 2.2, 16: 3.2, 32: 6.0, 64: 12.0}
"""V(n)/V(1) of one request."""


def linear(slope: float) -> Truth:
    return lambda rows: 1.0 + slope * (rows - 1)


def decoding(
    ms: float, lengths: Sequence[int] = (0,), *, depth: int = 0, prefill: int = 0, recomputed: int = 0
) -> Round:
    """A round of one request for each of `lengths`, which are of their drafts, that took `ms`."""
    outcomes = [
        (number, Outcome(1, (2,), Draft(tuple(range(length)), "s") if length else None))
        for number, length in enumerate(lengths)
    ]
    rows = len(lengths) + sum(lengths) + prefill + recomputed
    return Round(Load(len(lengths), prefill, depth, recomputed), rows, {}, ms, 0.0, tuple(outcomes))


def play(
    curve: CostCurve, *sizes: int, truth: Truth, times: int = 1, slower: float = 1.0, depth: int = 0
) -> None:
    """Rounds of one request whose forwards have these sizes, on a machine that is `slower`."""
    for _ in range(times):
        for rows in sizes:
            curve.learn(decoding(slower * PLAIN_MS * truth(rows), [rows - 1], depth=depth))


def measured(points: dict[int, float], times: int = FEW, **kept: bool) -> CostCurve:
    """A curve that has measured these sizes, each after a plain forward."""
    curve = CostCurve(**kept)
    play(curve, 1, truth=linear(0.0))
    for rows in points:
        play(curve, 1, rows, truth=lambda n: {1: 1.0, **points}[n], times=times)
    play(curve, 1, truth=linear(0.0))
    return curve


def stored(points: dict[int, float], *, ragged: bool = True) -> CostCurve:
    """A curve that begins with these values as its prior."""
    curve = CostCurve(ragged=ragged)
    curve.load_state({"milliseconds": {0: {rows: PLAIN_MS * cost for rows, cost in points.items()}}})
    return curve


def added(curve: CostCurve, lengths: Sequence[int]) -> float:
    """What drafts of these lengths add to the next forward."""
    passes, costs = curve.passes(max(lengths) + 1), curve.costs(sum(lengths) + 1)
    return passes.cost(lengths) - passes.plain if passes else costs[-1] - costs[0]


def by_rows(curve: CostCurve, most: int = 64) -> list[float]:
    """V(1) to V(most)."""
    return [curve.forward_cost(rows) for rows in range(1, most + 1)]


# --- one size after another ---------------------------------------------------------------------------


def test_nothing_is_known_before_a_plain_forward() -> None:
    curve = CostCurve()
    play(curve, 4, truth=linear(0.1))
    assert (curve.known, curve.stale, curve.baseline_ms, curve.rounds) == (False, False, 0.0, 1)
    assert by_rows(curve, 4) == pytest.approx([1 + PRIOR_SLOPE * n for n in range(4)])
    play(curve, 1, truth=linear(0.1))
    assert (curve.known, curve.baseline_ms) == (True, PLAIN_MS)


@given(st.dictionaries(st.integers(2, 40), st.floats(1.0, 2.5), min_size=1, max_size=10))
@settings(deadline=None)
def test_what_was_measured_is_what_it_costs(points: dict[int, float]) -> None:
    rising = dict(zip(sorted(points), accumulate(sorted(points.values()), max), strict=True))
    curve = measured(rising)
    assert [curve.forward_cost(rows) for rows in rising] == pytest.approx(list(rising.values()))
    costs = curve.costs(40)
    assert [costs[rows - 1] for rows in rising] == pytest.approx(list(rising.values()))


def test_steps_stay_steps_and_between_sizes_it_is_linear() -> None:
    curve = measured({2: 1.1, 4: 1.1, 5: 3.0, 8: 3.0, 12: 5.0})
    assert by_rows(curve, 12) == pytest.approx([1, 1.1, 1.1, 1.1, 3, 3, 3, 3, 3.5, 4, 4.5, 5])


def test_beyond_the_largest_size_further_rows_cost_less_but_something() -> None:
    costs = by_rows(measured({2: 1.5, 4: 2.5, 8: 4.5}))
    steps = [high - low for low, high in pairwise(costs[7:])]
    assert steps == pytest.approx([0.25] * len(steps)), "half of what a row cost from 4 to 8"
    assert min(costs[7:]) == costs[7]


@pytest.mark.parametrize("name", shipped_curves())
@pytest.mark.parametrize("busy", [False, True])
def test_noise_and_stalls_leave_the_shipped_curves_recognisable(name: str, *, busy: bool) -> None:
    truth, rng, stall = shipped_curves()[name], random.Random(7), 1.0
    curve = CostCurve()
    for _ in range(600):
        stall = rng.uniform(2, 9) if rng.random() < 0.02 * busy else stall if rng.random() < 0.9 else 1.0
        rows = 1 if rng.random() < 0.6 else 1 + int(2 ** rng.uniform(0, 6))
        curve.learn(decoding(truth.ratio(rows) * stall * rng.lognormvariate(0, 0.05), [rows - 1]))
    errors = [abs(curve.forward_cost(rows) / truth.ratio(rows) - 1) for rows in range(2, 65)]
    assert median(errors) < 0.04
    assert max(errors) < 0.25


def test_a_lasting_change_is_followed_and_odd_values_are_not() -> None:
    curve = measured({4: 2.0})
    play(curve, 1, 4, truth=linear(8.0), times=3)
    assert curve.forward_cost(4) == pytest.approx(2.0), "twelve times as dear, three times"
    play(curve, 1, 4, truth=linear(8.0), times=WINDOW)
    assert curve.forward_cost(4) == pytest.approx(25.0)
    play(curve, 1, 4, truth=linear(10.0), times=WINDOW)
    assert curve.forward_cost(4) == pytest.approx(31.0)


def test_what_was_measured_long_ago_counts_only_where_it_is_cheap() -> None:
    curve = measured({2: 1.1, 4: 4.0, 8: 9.0})
    play(curve, 1, truth=linear(0.0), times=OUTDATED_ROUNDS // 2)
    assert curve.forward_cost(4) == pytest.approx(4.0)
    play(curve, 1, truth=linear(0.0), times=OUTDATED_ROUNDS)
    assert by_rows(curve, 4) == pytest.approx([1.0, 1.1, 1.725, 1 + 3 * PRIOR_SLOPE])
    play(curve, 4, truth=linear(0.2))
    assert curve.forward_cost(4) == pytest.approx(1.6), "so it is measured again"


def test_what_was_measured_long_ago_counts_again_when_it_is_measured_as_it_was() -> None:
    curve, sizes = RelativeCosts({}, {}, 0), (2, 3, 4, 5, 6, 7, 8, 10)
    for rows in sizes:
        for _ in range(FEW):
            curve.learn(rows, linear(0.2)(rows), 1)
    for now in (OUTDATED_ROUNDS - 30, OUTDATED_ROUNDS + 2):
        curve.learn(2, 1.2, now)
        curve.upto(12, now)
    now = OUTDATED_ROUNDS + 100
    assert curve.upto(12, now)[7] < 2.0
    for rows in (5, 6, 7):
        curve.learn(rows, linear(0.2)(rows), now)
        curve.upto(12, now)
    assert curve.upto(12, now)[5:8] == pytest.approx([1.8, 2.0, 2.2])


def test_many_sizes_do_not_make_it_large() -> None:
    curve = CostCurve()
    for rows in range(2, 700):
        play(curve, 1, rows, truth=linear(0.2))
    assert curve.forward_cost(512) == pytest.approx(1 + 0.2 * 511, rel=0.05)
    assert len(curve.state()["milliseconds"]["192"]) < 64 + 700 // 16 + 2


# --- little evidence ----------------------------------------------------------------------------------


@pytest.mark.parametrize("prior", [None, ALONE])
def test_few_measurements_never_make_drafts_look_dearer_than_the_prior(
    prior: dict[int, float] | None,
) -> None:
    curve, before = (stored(prior), by_rows(stored(prior))) if prior else (CostCurve(), by_rows(CostCurve()))
    for n in range(FEW - 1):
        play(curve, 1, 2 + n, truth=lambda rows: 1.0 if rows == 1 else 5.0)
        assert all(cost <= prior_cost + 1e-9 for cost, prior_cost in zip(by_rows(curve), before, strict=True))
        assert curve.break_even(1.03) < 0.6


def test_one_measurement_may_make_them_look_cheaper() -> None:
    assert measured({4: 1.2}, times=1).forward_cost(4) == pytest.approx(1.2)
    assert measured({64: 4.0}, times=1).forward_cost(64) == pytest.approx(4.0), "a seventh"


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_prior_gives_way_to_few_measurements(factor: float) -> None:
    curve = stored({rows: 1 + factor * (cost - 1) for rows, cost in ALONE.items()})
    play(curve, *[1, 4] * FEW, *[1, 16] * FEW, truth=lambda rows: ALONE[rows])
    assert [curve.forward_cost(4), curve.forward_cost(16)] == pytest.approx([1.4, 3.2])


@pytest.mark.parametrize("busy", [2, 3, 4, 8])
def test_a_busy_moment_at_warm_up_distorts_nothing_for_long(busy: int) -> None:
    """One size four times too dear when the model is loaded: none is dearer than the next larger one."""
    curve = CostCurve()
    for rows in (1, 2, 1, 3, 1, 4, 1, 8, 1, 16):
        ms = PLAIN_MS * ALONE[rows] * (4.0 if rows == busy else 1.0)
        curve.learn(Round(Load(1, 0, 0), rows, {}, ms, 0.0, ()))
    larger = min(rows for rows in ALONE if rows > busy)
    assert curve.forward_cost(busy) <= ALONE[larger]
    play(curve, *[1, busy] * FEW, truth=lambda rows: ALONE[rows])
    assert curve.forward_cost(busy) == pytest.approx(ALONE[busy])


def test_a_size_seen_in_a_stall_only_is_no_dearer_than_larger_ones() -> None:
    """One that looks too dear is not used, and would never be measured again."""
    curve = measured({2: 1.13, 5: 1.6, 16: 4.0})
    play(curve, 1, truth=linear(0.0))
    play(curve, 4, truth=linear(0.6), times=FEW - 1)
    assert curve.forward_cost(4) == pytest.approx(1.6)


points = st.lists(
    st.tuples(st.integers(1, 500), st.floats(0.1, 50.0), st.integers(1, 15)), unique_by=lambda point: point[0]
).map(sorted)


@given(points)
def test_no_size_is_much_dearer_than_a_larger_one(points: list[tuple[int, float, int]]) -> None:
    result = pooled(points)
    assert [rows for rows, _ in result] == [rows for rows, _, _ in points]
    assert all(low[1] <= TOLERANCE * high[1] for low, high in combinations(result, 2))
    assert {value for _, value in result} <= {value for _, value, _ in points}, "nothing is made up"


@given(points)
def test_what_rises_stays(points: list[tuple[int, float, int]]) -> None:
    values = sorted(value for _, value, _ in points)
    rising = [(rows, value, weight) for (rows, _, weight), value in zip(points, values, strict=True)]
    assert pooled(rising) == [(rows, value) for rows, value, _ in rising]


def test_one_bad_measurement_gives_way_in_whichever_direction_it_is_wrong() -> None:
    assert pooled([(2, 1.2, 5), (3, 16.0, 2), (4, 1.6, 5)]) == [(2, 1.2), (3, 1.6), (4, 1.6)]
    low = pooled([(2, 1.2, 5), (3, 1.4, 5), (8, 0.2, 1), (9, 2.6, 1)])
    assert low == [(2, 1.2), (3, 1.4), (8, 1.4), (9, 2.6)]


def test_a_step_of_the_kernels_stays() -> None:
    """Measured, Q4_0 on a processor: four rows at a time, so 8 rows take less than 7."""
    steps = {4: 2.0, 5: 2.67, 6: 3.13, 7: 3.56, 8: 2.85}
    assert by_rows(measured({2: 1.5, 3: 2.0, **steps}), 8)[3:] == pytest.approx(list(steps.values()))


# --- time ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 4])
def test_a_tenfold_stall_changes_nothing(rows: int) -> None:
    curve = measured({4: 2.0})
    before = curve.forward_cost(4)
    play(curve, rows, truth=linear(1 / 3), slower=10.0, times=3)
    assert (curve.baseline_ms, curve.forward_cost(4)) == (PLAIN_MS, before)


def test_a_long_stall_slows_every_size_alike() -> None:
    curve = measured({n: 1.0 + 0.2 * (n - 1) for n in range(2, 12)})
    for slower in (10.0, 1.0):
        play(curve, *[1] * NEAR_ROUNDS, 4, 9, 1, 6, truth=linear(0.2), slower=slower, times=20)
        assert curve.baseline_ms == pytest.approx(slower * PLAIN_MS)
        assert [curve.forward_cost(n) for n in (4, 6, 9)] == pytest.approx([1.6, 2.0, 2.6])


def test_the_baseline_follows_drafted_forwards_and_v_of_n_stays() -> None:
    """Nothing plain is measured while the context grows; V(1) and V(n) grow alike."""
    curve = measured({4: 1.6})
    for step in range(100):
        play(curve, 4, truth=linear(0.2), slower=1.0 + 0.01 * step)
    assert curve.forward_cost(4) == pytest.approx(1.6, rel=0.03)
    assert curve.baseline_ms == pytest.approx(PLAIN_MS * (1.0 + 0.01 * 92), rel=0.03)


def test_a_plain_forward_is_due_now_and_then() -> None:
    curve = measured({4: 1.6})
    due = [curve.stale]
    play(curve, 4, truth=linear(0.2), times=STALE_ROUNDS)
    due.append(curve.stale)
    play(curve, 1, truth=linear(0.2))
    assert [*due, curve.stale] == [False, True, False]


@pytest.mark.parametrize("kind", [{"prefill": 30}, {"recomputed": 6}])
def test_rounds_with_rows_of_another_kind_say_nothing(kind: dict[str, int]) -> None:
    curve = measured(ALONE)
    before, rounds = by_rows(curve), curve.rounds
    for _ in range(WINDOW):
        curve.learn(decoding(80.0, [3], **kind))
    assert by_rows(curve) == before
    assert (curve.baseline_ms, curve.rounds) == (PLAIN_MS, rounds + WINDOW)


# --- changes of size ----------------------------------------------------------------------------------


def resized(extra: float, *sizes: int) -> CostCurve:
    """A curve of rounds of these sizes, each `extra` V(1) longer where the size changes."""
    curve, before = CostCurve(), 0
    for rows in (*[1, 1, 4, 1, 1, 8, 1, 1, 4, 4, 4, 1, 1, 2] * 4, 1, 1, *sizes):
        ms = PLAIN_MS * (linear(0.5)(rows) + extra * (rows != before))
        curve.learn(decoding(ms, [rows - 1]))
        before = rows
    return curve


def test_a_change_of_size_is_learnt_apart_from_the_sizes() -> None:
    curve = resized(0.1)
    assert curve.size_change == pytest.approx(0.1)
    assert curve.baseline_ms == pytest.approx(PLAIN_MS)
    assert [curve.forward_cost(rows) for rows in (2, 4, 8)] == pytest.approx([1.6, 2.6, 4.6]), "on the way up"


def test_a_single_draft_pays_for_both_ways() -> None:
    costs = resized(0.1).costs(8)
    assert [costs[0], costs[3]] == pytest.approx([1.0, 2.6 + 0.1])


def test_after_a_draft_going_back_costs_and_going_on_with_the_same_size_does_not() -> None:
    curve = resized(0.1, 4)
    costs = curve.costs(8)
    assert [costs[0], costs[3], costs[7]] == pytest.approx([1.1, 2.6, 4.6 + 0.1])
    assert added(curve, [3]) == pytest.approx(1.5)
    curve.learn(decoding(100.0, [0], prefill=16))
    assert curve.costs(1) == pytest.approx([1.1]), "what follows a prompt is a change, too"


def test_where_a_change_costs_nothing_the_curve_is_all() -> None:
    curve = resized(0.0, 4)
    assert curve.size_change == 0.0
    assert curve.costs(8) == by_rows(curve, 8)
    assert resized(0.1).break_even(1.03) > curve.break_even(1.03)


def test_few_changes_and_single_stalls_are_not_believed() -> None:
    curve = CostCurve()
    play(curve, 1, 1, truth=linear(0.5))
    for first in (1.2, 60.0, 1.2):
        play(curve, 4, truth=linear(0.5))
        play(curve, 1, truth=linear(0.5), slower=first)
        play(curve, 1, truth=linear(0.5))
    assert curve.size_change < 0.2
    for _ in range(FEW):
        play(curve, 4, truth=linear(0.5))
        play(curve, 1, truth=linear(0.5), slower=1.2)
        play(curve, 1, truth=linear(0.5))
    assert curve.size_change == pytest.approx(0.2)


def test_what_drafts_added_is_returned_when_they_are_learnt() -> None:
    curve = resized(0.1, 1)
    first = curve.learn(decoding(PLAIN_MS * 2.6, [3]))
    again = curve.learn(decoding(PLAIN_MS * 2.5, [3]))
    assert [first, again] == pytest.approx([1.6 + 0.1, 1.6 - 0.1]), "there and back; and as large as the last"
    assert curve.learn(decoding(PLAIN_MS * 1.1)) == 0.0


# --- depth and batch size -----------------------------------------------------------------------------


def test_every_depth_band_has_a_depth_of_its_own() -> None:
    assert [band_of(depth_of(band)) for band in range(12)] == list(range(12))
    assert [band_of(depth) for depth in (0, SHALLOW_TOKENS - 1, SHALLOW_TOKENS)] == [0, 0, 1]


def test_a_depth_begins_like_the_nearest_and_learns_by_itself() -> None:
    curve = measured({2: 1.5, 8: 3.0})
    curve.focus(Load(1, 0, 4000))
    assert curve.forward_cost(8) == pytest.approx(3.0)
    play(curve, 1, 8, truth=linear(5 / 7), depth=4000, times=10)
    assert curve.forward_cost(8) == pytest.approx(6.0)
    curve.focus(Load(1, 0, 100))
    assert curve.forward_cost(8) == pytest.approx(3.0)


def test_fewer_threads_have_a_curve_of_their_own_which_is_not_kept() -> None:
    curve = measured({2: 1.1, 8: 2.3})
    curve.focus(Load(1, 0, 0, idle_threads=1))
    assert curve.forward_cost(8) == pytest.approx(2.3), "as with all threads until it was measured"
    for rows in (1, 8) * 20:
        load = Load(1, 0, 0, idle_threads=1)
        ms = 2 * PLAIN_MS * (3.3 if rows == 8 else 1.0)
        curve.learn(Round(load, rows, {}, ms, 0.0, decoding(ms, [rows - 1]).outcomes))
    assert curve.forward_cost(8) == pytest.approx(3.3)
    curve.focus(Load(1, 0, 0))
    assert curve.forward_cost(8) == pytest.approx(2.3)
    kept = curve.state()["milliseconds"]["192"]
    assert kept["8"] / kept["1"] == pytest.approx(2.3)


def test_a_baseline_is_that_of_as_many_threads() -> None:
    curve = measured({2: 1.1, 8: 2.3})
    curve.focus(Load(1, 0, 0, idle_threads=1))
    assert curve.baseline_ms == pytest.approx(PLAIN_MS), "as with all threads until it was measured"
    assert curve.known
    due = [curve.stale]
    for _ in range(50):
        load = Load(1, 0, 0, idle_threads=1)
        curve.learn(Round(load, 1, {}, 2 * PLAIN_MS, 0.0, decoding(2 * PLAIN_MS, [0]).outcomes))
    assert curve.baseline_ms == pytest.approx(2 * PLAIN_MS)
    assert [*due, curve.stale] == [True, False]
    assert curve.state()["milliseconds"]["192"]["1"] == pytest.approx(PLAIN_MS)
    curve.focus(Load(1, 0, 0))
    assert curve.baseline_ms == pytest.approx(PLAIN_MS)


def batch_rounds(curve: CostCurve, *rounds: tuple[Sequence[int], float], times: int = 20) -> None:
    """Rounds with drafts of these lengths that cost so many V(1)."""
    for _ in range(times):
        for lengths, cost in rounds:
            curve.learn(decoding(PLAIN_MS * cost, lengths))


def test_a_batch_size_has_a_curve_of_its_own() -> None:
    curve = measured({2: 1.5, 4: 1.8})
    curve.focus(Load(2, 0, 0))
    assert curve.costs(3)[2] == pytest.approx(1.8), "nothing else was measured yet"
    assert curve.per_request == pytest.approx(0.75)
    batch_rounds(curve, ([0, 0], 1.5), ([2, 0], 3.2))
    assert curve.costs(3) == pytest.approx([1.5, 2.35, 3.2])
    assert added(curve, [1, 1]) == pytest.approx(1.7)
    curve.focus(Load(4, 0, 0))
    assert curve.costs(1) == pytest.approx([3.2]), "four requests are like two rather than one"
    curve.focus(Load(1, 0, 0))
    assert curve.costs(4)[3] == pytest.approx(1.8), "and one alone is as it was"
    assert list(curve.state()["milliseconds"]["192"]) == ["1", "2", "4"]


def test_a_plain_forward_of_four_is_not_one_of_three_with_a_draft() -> None:
    curve = measured({2: 1.5, 3: 1.6, 4: 1.8})
    batch_rounds(curve, ([0] * 4, 1.8), ([0] * 3, 1.6), ([1, 0, 0], 3.0))
    curve.focus(Load(3, 0, 0))
    assert curve.costs(2) == pytest.approx([1.6, 3.0])
    curve.focus(Load(4, 0, 0))
    assert curve.costs(1) == pytest.approx([1.8])


def test_plain_forwards_of_several_requests_are_a_baseline_too() -> None:
    curve = measured({4: 1.6, 8: 2.4})
    batch_rounds(curve, ([0] * 4, 3.2), ([1] * 4, 9.6), times=40)
    costs = curve.costs(5)
    assert costs[4] / costs[0] == pytest.approx(3.0)
    assert not curve.stale


def test_many_requests_share_curves() -> None:
    classes = [batch_class(n) for n in range(1, 65)]
    assert classes[:8] == list(range(1, 9))
    assert classes == sorted(classes)
    assert sorted(set(classes[8:])) == [9, 10, 11]


def test_extra_rows_are_in_every_forward() -> None:
    curve = measured(ALONE)
    assert curve.costs(5, 3) == pytest.approx(curve.costs(8)[3:])


# --- passes -------------------------------------------------------------------------------------------


def in_passes(batch_size: int) -> CostCurve:
    curve = stored(ALONE, ragged=False)
    curve.focus(Load(batch_size, 0, 100))
    return curve


@pytest.mark.parametrize(("ragged", "batch_size"), [(True, 4), (True, 1), (False, 1)])
def test_one_request_and_ragged_models_have_no_passes(batch_size: int, *, ragged: bool) -> None:
    curve = stored(ALONE, ragged=ragged)
    curve.focus(Load(batch_size, 0, 100))
    assert curve.passes(8) is None
    assert not curve.in_passes


def test_each_draft_is_a_pass() -> None:
    curve = in_passes(4)
    assert curve.costs(17)[2] == pytest.approx(1.4 + 1.1)
    assert curve.costs(17)[16] == pytest.approx(1.4 + 3.2)
    assert added(curve, [2, 0, 4, 0]) == pytest.approx(1.1 + 1.4)
    assert added(curve, [0, 0, 0, 0]) == 0.0


def test_or_all_requests_are_filled_up_where_that_is_cheaper() -> None:
    curve = in_passes(4)
    assert curve.costs(2)[1] == pytest.approx(2.2), "two rows each, not 1.4 + 1.0"
    assert added(curve, [3, 3, 2, 1]) == pytest.approx(3.2 - 1.4), "four rows each"
    assert added(in_passes(16), [4] * 16) == pytest.approx(16 * 1.4), "to no more than were measured"


def test_what_passes_cost_is_learnt_for_each_of_them() -> None:
    curve = in_passes(4)
    batch_rounds(curve, ([0] * 4, 1.4), ([2, 8, 0, 0], 1.4 + 2.0 * (1.1 + 2.2)))
    assert curve.costs(9)[0] == pytest.approx(1.4)
    assert curve.costs(9)[8] == pytest.approx(1.4 + 4.4, rel=0.01)
    assert added(curve, [8, 2]) == pytest.approx(4.4 + 2.2, rel=0.01)


def test_what_filled_up_forwards_cost_is_learnt_apart() -> None:
    curve = in_passes(4)
    batch_rounds(curve, ([0] * 4, 1.4), ([3, 3, 3, 1], 4.0))
    assert added(curve, [3, 3, 3, 1]) == pytest.approx(4.0 - 1.4)
    assert curve.costs(4)[3] == pytest.approx(1.4 + 1.2), "a draft alone costs what it did"


def test_a_larger_batch_begins_with_what_a_draft_adds_in_a_smaller_one() -> None:
    curve = in_passes(2)
    batch_rounds(curve, ([0, 0], 1.1), ([8, 0], 1.1 + 1.5))
    curve.focus(Load(8, 0, 100))
    assert curve.costs(9)[8] == pytest.approx(2.2 + 1.5, rel=0.01)


def test_the_price_of_passes_has_the_change_of_size() -> None:
    curve = stored(ALONE, ragged=False)
    curve.load_state(
        {**curve.state(), "size_change": 0.2, "milliseconds": {"0": {"1": 10, "2": 11, "8": 40}}}
    )
    curve.focus(Load(2, 0, 0))
    batch_rounds(curve, ([0, 0], 1.1), times=1)
    passes = curve.passes(8)
    assert passes is not None
    assert passes.plain == passes.base - 0.2, "as large as the last one"
    assert passes.cost([4, 0]) == pytest.approx(passes.base + passes.added[4] + 0.2)
    assert added(curve, [4]) == pytest.approx(passes.added[4] + 0.4), "there and back"


# --- what drafts must bring ---------------------------------------------------------------------------


@pytest.mark.parametrize("slope", [0.05, 0.3, 0.7])
def test_break_even_is_the_probability_with_which_the_best_draft_just_pays(slope: float) -> None:
    curve = measured({rows: 1 + slope * (rows - 1) for rows in (2, 4, 8, 16, 32, 64)})
    least = curve.break_even(1.0)

    def best(each: float) -> float:
        return max(sum(each**i for i in range(k + 1)) / curve.forward_cost(1 + k) for k in range(1, 64))

    assert best(least + 0.002) >= 1.0
    assert best(least - 0.002) < 1.0


def test_where_not_even_certain_tokens_pay_break_even_is_certainty() -> None:
    assert measured({2: 2.5, 4: 5.0, 64: 80.0}).break_even(1.03) == 1.0


def test_break_even_changes_with_what_is_measured() -> None:
    curve = measured({2: 1.5, 4: 2.5})
    before = curve.break_even(1.03)
    play(curve, 1, 4, truth=linear(0.1), times=WINDOW)
    assert curve.break_even(1.03) < before - 0.1


def test_a_draft_of_one_of_many_requests_must_bring_as_much_for_its_cost() -> None:
    alone, four = stored(ALONE), in_passes(4)
    assert four.break_even(1.03) > alone.break_even(1.03), "its rows are another pass of 1 V(1) and more"


def test_a_row_costs_what_it_does_on_average() -> None:
    assert measured({n: 1.0 + 0.3 * (n - 1) for n in (2, 4, 8, 16, 32, 64)}).row_cost() == pytest.approx(0.3)
    flattening = measured({8: 3.0, 16: 4.0, 32: 5.6, 64: 8.8})
    assert flattening.row_cost() == pytest.approx(0.1)
    stepped = measured({n: 1.0 + 0.6 * ((n + 3) // 4) for n in range(2, 65)})
    assert stepped.row_cost() == pytest.approx(0.15), "a row within a step is free, and no step is"


# --- bounds -------------------------------------------------------------------------------------------


@st.composite
def possible_curves(draw: st.DrawFn) -> list[float]:
    """V(0) to V(64) of a machine: monotone and subadditive, with steps."""
    steps = draw(st.lists(st.sampled_from([0.0, 0.0, 0.05, 0.3, 1.0]), min_size=64, max_size=64))
    costs = [0.0, *accumulate(steps[1:], initial=1.0)]
    for n in range(2, 65):
        costs[n] = min(costs[n], *(costs[a] + costs[n - a] for a in range(1, n)))
    return costs


@given(possible_curves(), st.sets(st.integers(2, 64), max_size=8), st.booleans())
@settings(deadline=None)
def test_bounds_are_upper_bounds(truth: list[float], sizes: set[int], ragged: bool) -> None:
    curve = CostCurve(ragged=ragged)
    for rows in sizes:
        play(curve, 1, rows, truth=lambda n: truth[n], times=FEW)
    bounds, costs = curve.bounds(64), curve.costs(64)
    assert all(bound >= cost for bound, cost in zip(bounds, costs, strict=True))
    assert all(bound >= truth[n] - 1e-9 for n, bound in enumerate(bounds, 1))
    assert all(bounds[rows - 1] == pytest.approx(costs[rows - 1]) for rows in sizes)
    curve.focus(Load(3, 0, 0))
    later = zip(curve.bounds(32, 2), curve.costs(32, 2), strict=True)
    assert all(bound >= cost for bound, cost in later)


def test_bounds_know_the_change_of_size() -> None:
    curve = resized(0.1, 4)
    assert all(b >= c for b, c in zip(curve.bounds(64), curve.costs(64), strict=True))
    assert curve.bounds(4)[3] == pytest.approx(curve.costs(4)[3])


# --- what is kept -------------------------------------------------------------------------------------


def test_what_is_kept_begins_where_it_ended() -> None:
    curve = measured({2: 1.2, 4: 1.5, 8: 2.0, 64: 9.0})
    play(curve, 1, 8, truth=linear(0.3), depth=4000, times=FEW)
    again = CostCurve()
    again.load_state(json.loads(json.dumps(curve.state())))
    assert not again.known, "how fast the machine is now is measured"
    for depth in (0, 4000):
        curve.focus(Load(1, 0, depth))
        again.focus(Load(1, 0, depth))
        assert by_rows(again, 64) == pytest.approx(by_rows(curve, 64))


def test_the_size_change_is_kept_and_corrected() -> None:
    curve = CostCurve()
    curve.load_state(json.loads(json.dumps(resized(0.4).state())))
    assert curve.size_change == pytest.approx(0.4)
    play(curve, 1, 1, truth=linear(0.5))
    play(curve, 4, 1, 1, truth=linear(0.5), times=FEW)
    assert curve.size_change == pytest.approx(0.0)


def test_a_stored_value_counts_where_it_is_cheap_and_is_corrected_where_it_is_dear() -> None:
    """It may be from a busy moment; a size that looks too dear would not be measured again."""
    curve = stored({2: 4.0, 4: 8.0, 8: 2.0, 1: 1.0})
    assert by_rows(curve, 8)[-1] == 2.0
    assert max(by_rows(curve, 8)) <= 2.0 * TOLERANCE
    play(curve, *[1, 4] * FEW, truth=linear(0.1))
    assert curve.forward_cost(4) == pytest.approx(1.3)


def test_nothing_is_kept_where_nothing_was_measured() -> None:
    assert stored(ALONE).state() == {}
    curve = CostCurve()
    curve.load_state({})
    assert by_rows(curve) == by_rows(CostCurve())


@pytest.mark.parametrize(
    "state",
    [
        {"milliseconds": 3},
        {"milliseconds": {"0": 3}},
        {"milliseconds": {"0": {}}},
        {"milliseconds": {"0": {"2": 5.0}}},
        {"milliseconds": {"x": {"1": 5.0}}},
        {"milliseconds": {"-1": {"1": 5.0}}},
        {"milliseconds": {"0": {"1": 5.0, "0": 1.0}}},
        {"milliseconds": {"0": {"1": 5.0, "2": 0.0}}},
        {"milliseconds": {"0": {"1": 5.0, "2": float("nan")}}},
        {"milliseconds": {"0": {"1": 5.0, "2": float("inf")}}},
        {"milliseconds": {"0": {"1": "much"}}},
        {"milliseconds": {"0": {"1": None}}},
        {"size_change": -1.0},
        {"size_change": float("nan")},
        {"size_change": []},
    ],
)
def test_a_damaged_state_is_refused_and_changes_nothing(state: dict[str, object]) -> None:
    curve = CostCurve()
    with pytest.raises(ValueError, match=r"."):
        curve.load_state(state)
    assert (by_rows(curve), curve.size_change) == (by_rows(CostCurve()), 0.0)
