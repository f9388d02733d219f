"""Measuring what a model's forwards cost: the batch cost curve V(n), at several depths of the KV cache.

Machines are noisy: another process can make everything ten times slower for seconds, or one forward alone.
So every pass visits all depths and all sizes, in another order each time, with a forward of one row before
and after each of the others. What is kept of a size is its ratio to the one-row forwards around it, which a
slow spell changes little, and of the ratios of all passes the median, which a hiccup changes little. V(1) is
the median of all one-row forwards at a depth, and V(n) is V(1) times the ratio. Nothing is smoothed: the
curve has steps (docs/how-it-works.md), and more rows can take less time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median
from time import perf_counter

import numpy as np

from foretoken.errors import CapacityError
from foretoken.planner.profile import Profile, key_of
from foretoken.protocols import Model
from foretoken.types import Rollback, Rows

ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 48, 63)
"""Every small size, since the steps that matter are there; 63 rows are the most that llama.cpp verifies."""

DEPTHS = (64, 512, 2048)
"""Tokens in the KV cache."""

LEAST_PASSES = 3
"""Fewer have no median that one slow pass could not spoil."""

SEQUENCE = 0

_CHUNK = 128
"""Tokens prefilled at once: few enough for a progress bar that moves."""

_ROW = 0.3
"""One more row in plain forwards, roughly: for the progress bar."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure: V(n) for the `rows` at the `depths` (tokens), in `repeats` passes over all of them.

    After `seconds` no pass is begun beyond the LEAST_PASSES. Raises ValueError.
    """

    rows: Sequence[int]
    depths: Sequence[int]
    repeats: int
    seconds: float

    def __post_init__(self) -> None:
        if not self.depths or min(*self.rows, *self.depths, self.repeats) < 1:
            raise ValueError("a plan has at least one depth, and every number in it is at least 1")


FULL = Plan(ROWS, DEPTHS, repeats=7, seconds=8.0)
QUICK = Plan((1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 32), (256,), repeats=LEAST_PASSES, seconds=1.5)


@dataclass(frozen=True, slots=True)
class Measurement:
    """A measured profile, and `best`: the shortest time of each forward, as `profile.curve`, in milliseconds.

    `slowdown` is how many times longer a plain forward usually took than the shortest one: well above 1 on a
    machine that had other things to do.
    """

    profile: Profile
    best: Mapping[int, Mapping[int, float]]
    passes: int
    slowdown: float


def measure_profile(
    model: Model,
    plan: Plan = FULL,
    *,
    progress: Callable[[float], None] | None = None,
    clock: Callable[[], float] = perf_counter,
) -> Measurement:
    """Measure V(n), and what a snapshot costs at the largest depth. Sequence 0 is empty before and after.

    What the model has no room for is left out, and depths end where the context does. The tokens are random:
    where the cost depends on them (a mixture of experts) that is the dear end. `progress` gets the fraction
    done. Raises CapacityError for a context too short to measure in, and what a forward raises.
    """
    sizes, depths = _fitting(model, plan)
    samples = {depth: _Samples(sizes) for depth in depths}
    bar = _Bar(progress, plan.repeats)
    sequence = _Sequence(model, depths, max(sizes), clock)
    try:
        share = _share_of_fill(sizes, depths, plan)
        sequence.fill(lambda tokens: bar.filled(tokens / max(depths), of=share))
        passes = _passes(sequence, samples, plan, bar, clock)
    finally:
        model.release(SEQUENCE)
    bar.done()
    profile = Profile(
        key=key_of(model.info),
        name=model.info.name,
        curve={depth: samples[depth].curve() for depth in depths},
        measured_at=datetime.now(UTC),
        snapshot_ms=round(median(sequence.snapshot_times), 4),
        restore_ms=round(median(sequence.restore_times), 4),
        rounds=passes * len(depths) * len(sizes),
    )
    return Measurement(
        profile=profile,
        best={depth: samples[depth].best() for depth in depths},
        passes=passes,
        slowdown=max(samples[depth].slowdown() for depth in depths),
    )


def _fitting(model: Model, plan: Plan) -> tuple[list[int], list[int]]:
    able = model.capabilities
    most = min(able.max_rows, able.max_batch, model.info.context_length // 2)
    sizes = sorted({1, *(size for size in plan.rows if size <= most)})
    if most < 2:
        raise CapacityError(
            "The context or the batch has no room for a draft: there is nothing to measure.",
            hint="Use a larger context (--ctx) or batch (--batch).",
        )
    deepest = model.info.context_length - sizes[-1]
    return sizes, sorted({min(depth, deepest) for depth in plan.depths})


def _share_of_fill(sizes: Sequence[int], depths: Sequence[int], plan: Plan) -> float:
    fill = _ROW * max(depths)
    one_pass = len(depths) * sum(map(_work, sizes))
    return fill / (fill + plan.repeats * one_pass)


def _work(size: int) -> float:
    """A forward and the plain one that follows it, in plain forwards."""
    return 2 + _ROW * (size - 1)


def _passes(
    sequence: _Sequence,
    samples: Mapping[int, _Samples],
    plan: Plan,
    bar: _Bar,
    clock: Callable[[], float],
) -> int:
    """Passes until the plan or the time is over; returns how many."""
    order = np.random.default_rng(0)
    began, done = clock(), 0
    while done < plan.repeats and (done < LEAST_PASSES or clock() - began < plan.seconds):
        for number, depth in enumerate(sorted(samples, reverse=True)):
            sequence.go_to(depth)
            bar.begin(done + number / len(samples), 1 / len(samples))
            sizes = [int(size) for size in order.permutation(samples[depth].sizes)]
            samples[depth].add(sequence, sizes, bar.visited)
        done += 1
        expected = int(plan.seconds * done / max(clock() - began, 1e-9)) + 1
        bar.expect(min(max(expected, LEAST_PASSES), plan.repeats))
    return done


class _Sequence:
    """A sequence that can be brought back to each depth. `fill` takes snapshots of it: of the deepest, from
    which the others are reached by truncation, or of each where the model cannot be truncated.
    """

    def __init__(self, model: Model, depths: Sequence[int], most: int, clock: Callable[[], float]) -> None:
        self._model = model
        self._depths = depths
        self._truncates = model.capabilities.rollback is Rollback.TRUNCATE
        random = np.random.default_rng(7)
        self._tokens = [int(token) for token in random.integers(0, model.info.vocab_size, max(depths) + most)]
        self._snapshots: dict[int, object] = {}
        self._depth = 0
        self._clock = clock
        self.snapshot_times: list[float] = []
        self.restore_times: list[float] = []

    def fill(self, progress: Callable[[int], None]) -> None:
        """Prefill to the largest depth; `progress` gets the tokens done."""
        model, start = self._model, 0
        model.release(SEQUENCE)
        for depth in self._depths:
            while start < depth:
                end = min(start + _CHUNK, start + model.capabilities.max_batch, depth)
                model.forward([Rows(SEQUENCE, start, self._tokens[start:end], 0)])
                start = end
                progress(start)
            if depth == max(self._depths) or not self._truncates:
                self._snapshots[depth] = model.snapshot(SEQUENCE)
        self._depth = start

    def go_to(self, depth: int) -> None:
        """Make the sequence `depth` tokens long. On the way to the largest depth snapshots are timed."""
        deepest = max(self._depths)
        if depth == deepest:
            self.restore_times.append(self._ms(lambda: self._restore(deepest)))
            self.snapshot_times.append(self._ms(lambda: self._model.snapshot(SEQUENCE)))
        self._depth = depth
        self._rewind()

    def forward_ms(self, rows: int) -> float:
        """The time of one forward whose rows all return logits; the sequence is as before."""
        batch = [Rows(SEQUENCE, self._depth, self._tokens[self._depth : self._depth + rows], rows)]
        elapsed = self._ms(lambda: self._model.forward(batch))
        self._rewind()
        return elapsed

    def _rewind(self) -> None:
        if self._truncates:
            self._model.truncate(SEQUENCE, self._depth)
        else:
            self._restore(self._depth)

    def _restore(self, depth: int) -> None:
        self._model.restore(SEQUENCE, self._snapshots[depth])

    def _ms(self, action: Callable[[], object]) -> float:
        began = self._clock()
        action()
        return 1e3 * (self._clock() - began)


class _Samples:
    """The times of all forwards at one depth."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = sizes
        self._singles: list[float] = []
        self._times: dict[int, list[float]] = {size: [] for size in sizes}
        self._ratios: dict[int, list[float]] = {size: [] for size in sizes}

    def add(self, sequence: _Sequence, order: Sequence[int], progress: Callable[[float], None]) -> None:
        """Time one forward of each size, between plain ones. `progress` gets the part that is done."""
        drafts = [size for size in order if size > 1]
        singles = [sequence.forward_ms(1)]
        times: list[float] = []
        work, total = 0.0, sum(map(_work, drafts))
        for size in drafts:
            times.append(sequence.forward_ms(size))
            singles.append(sequence.forward_ms(1))
            work += _work(size)
            progress(work / total)
        for i, (size, ms) in enumerate(zip(drafts, times, strict=True)):
            near = singles[max(0, i - 1) : i + 3]  # two before, two after
            self._times[size].append(ms)
            self._ratios[size].append(ms / max(median(near), 1e-6))
        self._singles += singles

    def curve(self) -> dict[int, float]:
        """V(n) in milliseconds."""
        single = median(self._singles)
        ratios = {size: median(self._ratios[size]) if size > 1 else 1.0 for size in self.sizes}
        return {size: round(max(single * ratio, 1e-4), 4) for size, ratio in ratios.items()}

    def best(self) -> dict[int, float]:
        """The shortest time of each size, in milliseconds."""
        return {size: round(max(min(self._times[size] or self._singles), 1e-4), 4) for size in self.sizes}

    def slowdown(self) -> float:
        """The usual plain forward over the shortest one."""
        return median(self._singles) / max(min(self._singles), 1e-6)


class _Bar:
    """Progress as a fraction that only grows, though the number of passes becomes known on the way."""

    def __init__(self, report: Callable[[float], None] | None, repeats: int) -> None:
        self._report = report
        self._expected = repeats
        self._fill = 0.0
        self._visit = (0.0, 0.0)
        self._shown = 0.0

    def filled(self, share: float, of: float) -> None:
        """`share` of the prefill is done, which is `of` the whole."""
        self._fill = of
        self._show(share * of)

    def expect(self, passes: int) -> None:
        """So many passes there will be."""
        self._expected = passes

    def begin(self, passes: float, size: float) -> None:
        """So many passes are done; what begins now is `size` of one."""
        self._visit = (passes, size)

    def visited(self, part: float) -> None:
        """A part of what began last is done."""
        passes, size = self._visit
        self._show(self._fill + (1 - self._fill) * min((passes + part * size) / self._expected, 1.0))

    def done(self) -> None:
        """Everything is."""
        self._show(1.0)

    def _show(self, fraction: float) -> None:
        self._shown = max(self._shown, fraction)
        if self._report is not None:
            self._report(self._shown)
