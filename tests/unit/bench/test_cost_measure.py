"""Measuring V(n): with a clock that the test keeps, so that the truth is known and a machine can stall."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from statistics import median
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from foredraft.bench.cost_measure import DEPTHS, FULL, QUICK, ROWS, SETTLED, Plan, measure_profile, settled
from foredraft.engine.profile_store import key_of
from foredraft.errors import BackendError, CapacityError
from foredraft.testing import FakeModel
from foredraft.types import Logits, Rollback, Rows

Cost = Callable[[int, int], float]
"""(rows, depth) → milliseconds."""

STEPS = {1: 1.0, 2: 1.56, 3: 2.01, 4: 2.01, 5: 2.67, 6: 3.13, 7: 3.56, 8: 2.85, 10: 4.08, 12: 3.79, 16: 4.19}
"""Measured: Q4_0 kernels take four rows at a time, so eight rows cost less than seven."""


def stepped(rows: int, depth: int) -> float:
    return (5.0 + depth / 1000) * STEPS.get(rows, rows * 0.3)


class TimedModel(FakeModel):
    """Its forwards take what `cost` says, on the test's own clock, times `load(now)`."""

    def __init__(
        self, cost: Cost = stepped, *, load: Callable[[float], float] = lambda now: 1.0, **options: Any
    ) -> None:
        super().__init__(8, logits=lambda prefix: ZEROS, **options)
        self.now = 0.0
        self._cost = cost
        self._load = load
        self.snapshots = 0
        self.restored: list[int] = []
        self.busy: Callable[[float], bool] = lambda now: False
        self.idle = 0

    @property
    def idle_threads(self) -> int:
        return self.idle

    def clock(self) -> float:
        return self.now

    def spend(self, ms: float) -> None:
        self.now += ms * self._load(self.now) / 1e3

    def forward(self, batch: Sequence[Rows]) -> Logits:
        (rows,) = batch
        self.idle = int(self.busy(self.now))
        slower = len(rows.tokens) ** 0.5 if self.idle else 1.0
        self.spend(slower * self._cost(len(rows.tokens), rows.start))
        return super().forward(batch)

    def snapshot(self, seq: int) -> bytearray:
        self.snapshots += 1
        self.spend(3.0)
        return super().snapshot(seq)

    def restore(self, seq: int, snapshot: object) -> None:
        self.spend(2.0)
        super().restore(seq, snapshot)
        self.restored.append(self.length(seq))

    def truncate(self, seq: int, length: int) -> None:
        if self.capabilities.rollback is not Rollback.TRUNCATE:
            raise BackendError("cannot be truncated")
        super().truncate(seq, length)


def unsettled(cost: Cost = stepped) -> Cost:
    """As `cost`, but no two forwards of several rows agree."""
    count = 0

    def varied(rows: int, depth: int) -> float:
        nonlocal count
        count += rows > 1
        return cost(rows, depth) * (1.0 if rows == 1 else 1.0 + 0.05 * count)

    return varied


ZEROS = FakeModel(8).forward([Rows(0, 0, (0,), 1)])[0] * 0

PLAN = Plan(rows=tuple(STEPS), depths=(16, 128), repeats=5, seconds=60.0)


# --- what is measured ----------------------------------------------------------------------------------


def test_a_quiet_machine_gives_the_true_curve_steps_and_all() -> None:
    model = TimedModel()
    found = measure_profile(model, PLAN, clock=model.clock)
    assert list(found.profile.curve) == [16, 128]
    for depth, curve in found.profile.curve.items():
        assert list(curve) == list(STEPS)
        for rows, ms in curve.items():
            assert ms == pytest.approx(stepped(rows, depth), rel=1e-3)
        assert curve[8] < curve[7]
    assert found.best == found.profile.curve
    assert found.slowdown == pytest.approx(1.0)


def test_the_profile_is_of_the_model_and_of_now() -> None:
    model = TimedModel()
    before = datetime.now(UTC)
    found = measure_profile(model, PLAN, clock=model.clock)
    profile = found.profile
    assert profile.key == key_of(model.info)
    assert profile.name == model.info.name
    assert before <= profile.measured_at <= datetime.now(UTC)
    assert found.passes == 3
    timed = [rows for (rows,) in model.forwards if rows.logits]
    assert profile.rounds == len(timed)
    assert profile.thorough


def test_every_row_returns_logits_as_when_a_draft_is_verified() -> None:
    model = TimedModel()
    measure_profile(model, PLAN, clock=model.clock)
    at_depth = [rows for (rows,) in model.forwards if rows.logits]
    assert at_depth
    assert all(rows.logits == len(rows.tokens) for rows in at_depth)
    assert {rows.start for rows in at_depth} == {16, 128}
    assert all(token < model.info.vocab_size for rows in at_depth for token in rows.tokens)


def test_the_cache_is_filled_once_and_left_empty() -> None:
    model = TimedModel()
    measure_profile(model, PLAN, clock=model.clock)
    filled = sum(len(rows.tokens) for (rows,) in model.forwards if not rows.logits)
    assert filled == 128
    assert model.length(0) == 0


def test_passes_with_fewer_threads_are_done_again() -> None:
    """A model that leaves cores to others has another curve then."""
    model = TimedModel()
    model.busy = lambda now: now % 1.5 > 0.8
    found = measure_profile(model, PLAN, clock=model.clock)
    for depth, curve in found.profile.curve.items():
        assert curve == pytest.approx({rows: stepped(rows, depth) for rows in STEPS}, rel=1e-3)
    assert found.profile.rounds < len([rows for (rows,) in model.forwards if rows.logits])


def test_a_machine_that_stays_busy_has_no_profile() -> None:
    model = TimedModel()
    model.busy = lambda now: now > 1.0
    with pytest.raises(BackendError, match="other processes use the cores"):
        measure_profile(model, PLAN, clock=model.clock)
    assert model.length(0) == 0


def test_snapshot_and_restore_are_timed() -> None:
    model = TimedModel()
    profile = measure_profile(model, PLAN, clock=model.clock).profile
    assert profile.snapshot_ms == pytest.approx(3.0)
    assert profile.restore_ms == pytest.approx(2.0)
    assert set(model.restored) == {128}


def test_sizes_and_depths_take_turns() -> None:
    """Else a stall would fall on one size, or one depth, alone."""
    model = TimedModel(unsettled())
    measure_profile(model, PLAN, clock=model.clock)
    drafts = [len(rows.tokens) for (rows,) in model.forwards if len(rows.tokens) > 1 and rows.logits]
    sizes = len(STEPS) - 1
    passes = [drafts[at : at + sizes] for at in range(0, len(drafts), sizes)]
    assert all(sorted(one) == sorted(set(STEPS) - {1}) for one in passes)
    assert len({tuple(one) for one in passes}) > 1, "in another order each time"
    depths = [rows.start for (rows,) in model.forwards if rows.logits]
    changes = sum(a != b for a, b in pairwise(depths))
    assert changes == 2 * 5 - 1


def test_a_model_that_cannot_be_truncated_is_brought_back_by_snapshots() -> None:
    model = TimedModel()
    model.with_capabilities(rollback=Rollback.SNAPSHOT)
    found = measure_profile(model, PLAN, clock=model.clock)
    for depth, curve in found.profile.curve.items():
        assert curve[8] == pytest.approx(stepped(8, depth), rel=1e-3)
    assert set(model.restored) == {16, 128}
    assert found.profile.restore_ms == pytest.approx(2.0)


@pytest.mark.parametrize("extra_ms", [0.0, 0.6])
def test_what_a_change_of_size_takes_is_measured_apart_from_plain_decoding(extra_ms: float) -> None:
    before = 0

    def cost(rows: int, depth: int) -> float:
        nonlocal before
        changed, before = rows != before, rows
        return stepped(rows, depth) + extra_ms * changed

    model = TimedModel(cost)
    profile = measure_profile(model, PLAN, clock=model.clock).profile
    assert profile.resize == pytest.approx(extra_ms / stepped(1, 64), rel=0.02, abs=1e-4)
    for depth, curve in profile.curve.items():
        assert curve[1] == pytest.approx(stepped(1, depth), rel=1e-3), "as in plain decoding"
        assert curve[4] == pytest.approx(stepped(4, depth) + extra_ms, rel=1e-3)


# --- a noisy machine -----------------------------------------------------------------------------------


@pytest.mark.parametrize("begins", [0.5, 0.9, 1.3, 2.1, 3.0])
def test_a_stall_of_seconds_distorts_nothing(begins: float) -> None:
    """Tenfold for a stretch that swallows about one pass in five."""

    def load(now: float) -> float:
        return 10.0 if begins <= now < begins + 3.0 else 1.0

    model = TimedModel(load=load)
    found = measure_profile(model, Plan(PLAN.rows, PLAN.depths, repeats=9, seconds=60.0), clock=model.clock)
    for depth, curve in found.profile.curve.items():
        for rows, ms in curve.items():
            assert ms == pytest.approx(stepped(rows, depth), rel=0.05), (depth, rows)
            assert found.best[depth][rows] == pytest.approx(stepped(rows, depth), rel=1e-3)


def test_hiccups_of_single_forwards_distort_nothing() -> None:
    count = 0

    def cost(rows: int, depth: int) -> float:
        nonlocal count
        count += 1
        return stepped(rows, depth) * (10 if count % 7 == 0 else 1)

    model = TimedModel(cost)
    found = measure_profile(model, Plan(PLAN.rows, PLAN.depths, repeats=9, seconds=60.0), clock=model.clock)
    for depth, curve in found.profile.curve.items():
        for rows, ms in curve.items():
            assert ms == pytest.approx(stepped(rows, depth), rel=0.05), (depth, rows)


def test_a_machine_that_tires_in_every_pass_keeps_the_shape() -> None:
    """Only the forwards nearby tell how fast it was just then."""
    count = 0
    visit = 3 * len(STEPS) - 1  # forwards at one depth in one pass

    def cost(rows: int, depth: int) -> float:
        nonlocal count
        if rows > max(STEPS):
            return 1.0  # prefill
        count += depth > 0
        return stepped(rows, depth) * (3 if count % visit > 5 else 1)

    model = TimedModel(cost)
    found = measure_profile(model, Plan(PLAN.rows, PLAN.depths, repeats=7, seconds=60.0), clock=model.clock)
    for curve in found.profile.curve.values():
        for rows, ms in curve.items():
            assert ms / curve[1] == pytest.approx(STEPS[rows], rel=0.05), rows


def test_a_machine_that_slows_down_keeps_the_shape() -> None:
    model = TimedModel(load=lambda now: 1 + now / 4)
    found = measure_profile(model, PLAN, clock=model.clock)
    for curve in found.profile.curve.values():
        for rows, ms in curve.items():
            assert ms / curve[1] == pytest.approx(STEPS[rows], rel=0.05)
    assert found.slowdown > 1.1


# --- how much and how long -----------------------------------------------------------------------------


def test_what_the_model_cannot_hold_is_left_out() -> None:
    model = TimedModel(max_rows=16, max_batch=12, context_length=100)
    found = measure_profile(model, Plan((1, 4, 12, 16), (16, 64, 4000), 3, 60.0), clock=model.clock)
    assert list(found.profile.curve) == [16, 64, 88]
    assert all(list(curve) == [1, 4, 12] for curve in found.profile.curve.values())


def test_a_very_short_context() -> None:
    model = TimedModel(context_length=16)
    found = measure_profile(model, FULL, clock=model.clock)
    assert list(found.profile.curve) == [8]
    assert list(found.profile.curve[8]) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_a_context_without_room_for_a_draft() -> None:
    model = TimedModel(context_length=2)
    with pytest.raises(CapacityError) as caught:
        measure_profile(model, FULL, clock=model.clock)
    assert caught.value.hint


def test_one_row_is_always_measured() -> None:
    model = TimedModel()
    curve = measure_profile(model, Plan((4, 2), (16,), 3, 60.0), clock=model.clock).profile.curve
    assert list(curve[16]) == [1, 2, 4]


def test_time_is_up_after_the_least_number_of_passes() -> None:
    slow = TimedModel(unsettled(lambda rows, depth: 1000.0))
    assert measure_profile(slow, Plan((1, 2), (16,), 9, 1.0), clock=slow.clock).passes == 3
    fast = TimedModel(unsettled(lambda rows, depth: 1.0))
    assert measure_profile(fast, Plan((1, 2), (16,), 9, 1.0), clock=fast.clock).passes == 9
    between = TimedModel(unsettled(lambda rows, depth: 50.0))
    passes = measure_profile(between, Plan((1, 2), (16,), 9, 1.0), clock=between.clock).passes
    assert 3 < passes < 9


# --- when a size is settled ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratios", "enough"),
    [
        ([], False),
        ([2.0], False),
        ([2.0, 2.0], False),  # a short forward: both may have been spoilt
        ([2.0, 2.0, 2.05], True),
        ([2.0, 2.0, 2.1], False),
        ([2.0, 9.0, 2.05], False),
        ([2.0, 9.0, 2.05, 2.01], True),
        ([2.0, 9.0, 2.05, 9.0, 2.01], False),
        ([2.0, 9.0, 2.05, 9.0, 2.01, 2.0], False),
        ([2.0, 9.0, 2.05, 9.0, 2.01, 2.0, 2.0, 2.02], True),
        ([8.0], False),
        ([8.0, 8.2], True),
        ([8.0, 8.3], False),
        ([8.0, 8.3, 8.2], False),
        ([8.0, 8.3, 8.2, 8.25], True),
    ],
)
def test_a_size_is_settled_when_most_of_its_ratios_agree(ratios: list[float], enough: bool) -> None:
    assert settled(ratios) is enough
    assert settled(ratios[::-1]) is enough


@given(
    st.floats(0.8, 40),
    st.lists(st.floats(0.985, 1.015), min_size=2, max_size=7),
    st.lists(st.floats(0.5, 20), max_size=2),
    st.floats(0.5, 400),
)
def test_one_more_measurement_hardly_moves_a_settled_median(
    ratio: float, near: list[float], far: list[float], more: float
) -> None:
    ratios = [ratio * part for part in (*near, *far)]
    assume(settled(ratios))
    before, after = median(ratios), median([*ratios, more])
    assert after == pytest.approx(before, rel=2 * SETTLED)


def test_a_quiet_machine_measures_long_forwards_twice_and_short_ones_three_times() -> None:
    model = TimedModel(lambda rows, depth: 1.0 + 0.6 * (rows - 1))
    found = measure_profile(model, Plan((1, 2, 4, 16, 32), (16, 64), 7, 60.0), clock=model.clock)
    assert found.passes == 3
    timed = Counter(len(rows.tokens) for (rows,) in model.forwards if rows.logits)
    assert [timed[size] for size in (2, 4, 16, 32)] == [2 * 3, 2 * 3, 2 * 2, 2 * 2]


def test_very_long_forwards_are_measured_once_and_again_where_they_look_too_dear() -> None:
    """Of 24 rows and more each is as long as 20 plain ones; the first forward of 48 is hit by something."""
    struck = 0

    def cost(rows: int, depth: int) -> float:
        nonlocal struck
        struck += rows == 48
        return rows * (2.0 if rows == 48 and struck == 1 else 1.0)

    model = TimedModel(cost)
    found = measure_profile(model, Plan((1, 2, 24, 32, 48, 63), (16,), 7, 60.0), clock=model.clock)
    timed = Counter(len(rows.tokens) for (rows,) in model.forwards if rows.logits)
    assert [timed[size] for size in (2, 24, 32, 63)] == [3, 1, 1, 1]
    assert timed[48] > 2
    assert found.profile.curve[16][48] == pytest.approx(48.0, rel=0.01)


def test_the_largest_depth_ends_where_filling_the_cache_takes_too_long() -> None:
    slow = TimedModel(lambda rows, depth: 0.5 * rows if rows > 63 else float(rows))
    plan = Plan((1, 2), (64, 512, 2048), 3, 60.0, fill_seconds=0.5)
    found = measure_profile(slow, plan, clock=slow.clock)
    assert list(found.profile.curve) == [64, 512, 1024]  # half a millisecond a token
    assert found.cut == 2048
    assert found.profile.snapshot_ms == pytest.approx(3.0)
    whole = measure_profile(slow, replace(plan, fill_seconds=2.0), clock=slow.clock)
    assert (list(whole.profile.curve), whole.cut) == ([64, 512, 2048], None)
    for seconds in (0.01, 0.3):  # to 512, and to 640, which is hardly deeper
        hardly = measure_profile(slow, replace(plan, fill_seconds=seconds), clock=slow.clock)
        assert (list(hardly.profile.curve), hardly.cut) == ([64, 512], 2048)
        assert hardly.profile.snapshot_ms == pytest.approx(3.0)
    one = measure_profile(slow, replace(plan, depths=(256,), fill_seconds=0.0), clock=slow.clock)
    assert (list(one.profile.curve), one.cut) == ([256], None)


@pytest.mark.parametrize(("seconds", "depths"), [(0.5, [64, 512, 1024]), (0.3, [64, 512])])
def test_a_cut_depth_is_one_that_can_be_brought_back(seconds: float, depths: list[int]) -> None:
    slow = TimedModel(lambda rows, depth: 0.5 * rows if rows > 63 else float(rows))
    slow.with_capabilities(rollback=Rollback.SNAPSHOT)
    plan = Plan((1, 2), (64, 512, 2048), 3, 60.0, fill_seconds=seconds)
    found = measure_profile(slow, plan, clock=slow.clock)
    assert list(found.profile.curve) == depths
    assert set(slow.restored) == set(depths)


def test_what_does_not_settle_is_measured_until_the_plan_is_over() -> None:
    restless = unsettled(lambda rows, depth: 1.0)
    model = TimedModel(lambda rows, depth: restless(rows, depth) if rows in (1, 4) else 2.0)
    measure_profile(model, Plan((1, 2, 4, 8), (16,), 7, 60.0), clock=model.clock)
    timed = Counter(len(rows.tokens) for (rows,) in model.forwards if rows.logits)
    assert (timed[2], timed[4], timed[8]) == (3, 7, 3)


def test_the_plans() -> None:
    assert (FULL.rows, FULL.depths) == (ROWS, DEPTHS)
    assert set(QUICK.rows) < set(ROWS)
    assert QUICK.seconds < FULL.seconds


@pytest.mark.parametrize("bad", [{"rows": (0,)}, {"depths": ()}, {"depths": (0,)}, {"repeats": 0}])
def test_a_plan_that_measures_nothing_is_refused(bad: dict[str, object]) -> None:
    values: dict[str, object] = {"rows": (1, 2), "depths": (16,), "repeats": 3, "seconds": 1.0, **bad}
    with pytest.raises(ValueError, match="least"):
        Plan(**values)  # type: ignore[arg-type]


# --- progress, and the end -----------------------------------------------------------------------------


@pytest.mark.parametrize("ms", [1.0, 1000.0])
def test_progress_only_grows_and_ends_at_one(ms: float) -> None:
    model = TimedModel(lambda rows, depth: ms)
    seen: list[float] = []
    measure_profile(model, PLAN, progress=seen.append, clock=model.clock)
    assert len(seen) > 20
    assert seen == sorted(seen)
    assert 0 <= seen[0] < 0.2
    assert seen[-1] == 1.0


def test_the_cache_is_empty_after_an_interruption() -> None:
    model = TimedModel()

    def stop(fraction: float) -> None:
        if fraction > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure_profile(model, PLAN, progress=stop, clock=model.clock)
    assert model.length(0) == 0
