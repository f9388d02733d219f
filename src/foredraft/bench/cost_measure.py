"""Measuring what a model's forwards cost: the batch cost curve V(n), at several depths of the KV cache.

Machines are noisy: another process can make everything ten times slower for seconds, or one forward alone.
So every pass visits all depths and all sizes, in another order each time, with a forward of one row before
and after each of the others. What is kept of a size is its ratio to the one-row forwards around it, which a
slow spell changes little, and of the ratios of all passes the median, which a hiccup changes little. V(1) is
the median of all one-row forwards at a depth, and V(n) is V(1) times the ratio. Nothing is smoothed: the
curve has steps (docs/how-it-works.md), and more rows can take less time.

A forward takes longer when the one before it had another number of rows. In plain decoding none does, so of
two one-row forwards only the second counts; the difference to the first is `Profile.resize`.

A size whose median is settled is left out of the further passes. It is when three quarters of its ratios,
and three at least, lie within 3 % of each other: one more could not move the median out of that band. Of
forwards as long as five plain ones two that agree are enough: a hiccup that spoils a short one is a small
part of a long one. And one is enough as long as 20 plain ones, if its rows are not much dearer than those of
the next smaller size: such drafts are only verified where nearly all is right, and such forwards would be
most of the time. So a quiet machine is done after three passes, of which only the first is over everything.

A model that leaves cores to other processes (`Model.idle_threads`) has other costs meanwhile, which are not
to be mixed with its own: a pass over a depth in which it did so is thrown away and done again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from math import inf
from statistics import median
from time import perf_counter

import numpy as np

from foredraft.engine.profile_store import Profile, key_of
from foredraft.errors import BackendError, CapacityError
from foredraft.planner.cost import TOLERANCE
from foredraft.protocols import Model
from foredraft.types import Rollback, Rows

ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 48, 63)
"""Every small size, since the steps that matter are there; 63 rows are the most that llama.cpp verifies."""

DEPTHS = (64, 512, 2048)
"""Tokens in the KV cache."""

LEAST_PASSES = 3
"""Fewer have no median that one slow pass could not spoil."""

SETTLED = 0.03
"""How far ratios that agree may be apart, as a share of the median."""

LONG, VERY_LONG = 5.0, 20.0
"""Plain forwards. One that takes as long averages over what disturbs a plain one."""

DEEPER = 1.5
"""By which factor a depth must be deeper than the one before to be worth measuring."""

DEARER = 1.3
"""By how much a row may cost more than in the next smaller size; more is looked at again."""

ATTEMPTS = 5
"""How often a pass over a depth is done before the machine is said to be too busy."""

SEQUENCE = 0

_CHUNK = 128
"""Tokens prefilled at once: few enough for a progress bar that moves."""

_ROW = 0.3
"""One more row in plain forwards, roughly: for the progress bar."""

_USUAL_PASSES = 2.2
"""Over all that is measured: for the progress bar."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure: V(n) for the `rows` at the `depths` (tokens), in `repeats` passes at most over those
    that are not settled.

    After `seconds` no pass is begun beyond the LEAST_PASSES. The largest depth ends where filling the KV
    cache has taken `fill_seconds`. Raises ValueError.
    """

    rows: Sequence[int]
    depths: Sequence[int]
    repeats: int
    seconds: float
    fill_seconds: float = inf

    def __post_init__(self) -> None:
        if not self.depths or min(*self.rows, *self.depths, self.repeats) < 1:
            raise ValueError("a plan has at least one depth, and every number in it is at least 1")


FULL = Plan(ROWS, DEPTHS, repeats=7, seconds=8.0, fill_seconds=5.0)
QUICK = Plan(
    (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 32), (256,), repeats=LEAST_PASSES, seconds=1.5, fill_seconds=5.0
)


@dataclass(frozen=True, slots=True)
class Measurement:
    """A measured profile, and `best`: the shortest time of each forward, as `profile.curve`, in milliseconds.

    `slowdown` is how many times longer a plain forward usually took than the shortest one: well above 1 on a
    machine that had other things to do. `cut`: the largest depth of the plan, if it was not reached in time.
    """

    profile: Profile
    best: Mapping[int, Mapping[int, float]]
    passes: int
    slowdown: float
    cut: int | None = None


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
    done. Raises CapacityError for a context too short to measure in, BackendError where other processes keep
    the model from all its threads, and what a forward raises.
    """
    sizes, depths = _fitting(model, plan)
    bar = _Bar(progress, fill=_ROW * depths[-1])
    bar.expect(_USUAL_PASSES * len(depths) * sum(map(_work, sizes)))
    sequence = _Sequence(model, depths, max(sizes), clock)
    try:
        sequence.fill(lambda tokens: bar.show(_ROW * tokens), plan.fill_seconds)
        bar.begin(_ROW * sequence.depths[-1])
        samples = {depth: _Samples(sizes) for depth in sequence.depths}
        passes = _passes(sequence, samples, plan, bar, clock)
    finally:
        model.release(SEQUENCE)
    bar.done()
    profile = Profile(
        key=key_of(model.info),
        name=model.info.name,
        curve={depth: at.curve() for depth, at in samples.items()},
        measured_at=datetime.now(UTC),
        snapshot_ms=round(median(sequence.snapshot_times), 4),
        restore_ms=round(median(sequence.restore_times), 4),
        resize=round(max(median(ratio for at in samples.values() for ratio in at.resized), 0.0), 4),
        rounds=sum(at.count for at in samples.values()),
        thorough=True,
    )
    return Measurement(
        profile=profile,
        best={depth: at.best() for depth, at in samples.items()},
        passes=passes,
        slowdown=max(at.slowdown() for at in samples.values()),
        cut=depths[-1] if depths[-1] > sequence.depths[-1] else None,
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


def _work(size: int) -> float:
    """A forward and the two plain ones that follow it, in plain forwards."""
    return 3 + _ROW * (size - 1)


def _work_left(samples: Mapping[int, _Samples]) -> float:
    """A pass over what is not settled, in plain forwards."""
    return sum(_work(size) for at in samples.values() for size in at.unsettled())


def _passes(
    sequence: _Sequence,
    samples: Mapping[int, _Samples],
    plan: Plan,
    bar: _Bar,
    clock: Callable[[], float],
) -> int:
    """Passes until everything is settled, or the plan or the time is over; returns how many."""
    order = np.random.default_rng(0)
    began, done = clock(), 0
    while done < plan.repeats and (done < LEAST_PASSES or clock() - began < plan.seconds):
        work = _work_left(samples)
        if not work:
            break
        bar.expect(work * max(_USUAL_PASSES - done, 1.0))
        for depth in sorted(samples, reverse=True):
            sizes = [int(size) for size in order.permutation(samples[depth].unsettled())]
            if sizes:
                bar.begin(_added(samples[depth], sequence, depth, sizes, bar))
        done += 1
    return done


def _added(samples: _Samples, sequence: _Sequence, depth: int, order: Sequence[int], bar: _Bar) -> float:
    """A pass over a depth with all threads; returns its work. Raises BackendError where there are fewer."""
    for _ in range(ATTEMPTS):
        sequence.go_to(depth)
        if work := samples.add(sequence, order, bar.show):
            return work
    raise BackendError(
        "The costs cannot be measured: other processes use the cores, and the model leaves threads out.",
        hint="Measure when the machine is quiet, or say how many threads there are to be (threads).",
    )


class _Sequence:
    """A sequence that can be brought back to each depth. `fill` takes snapshots of it: of the deepest, from
    which the others are reached by truncation, or of each where the model cannot be truncated.
    """

    def __init__(self, model: Model, depths: Sequence[int], most: int, clock: Callable[[], float]) -> None:
        self._model = model
        self.depths = list(depths)
        self._truncates = model.capabilities.rollback is Rollback.TRUNCATE
        random = np.random.default_rng(7)
        self._tokens = [int(token) for token in random.integers(0, model.info.vocab_size, max(depths) + most)]
        self._snapshots: dict[int, object] = {}
        self._depth = 0
        self._clock = clock
        self.threads_left_out = False
        """Whether a forward had fewer threads since this was last set."""
        self.snapshot_times: list[float] = []
        self.restore_times: list[float] = []

    def fill(self, progress: Callable[[int], None], seconds: float) -> None:
        """Prefill to the largest depth, or as far as that gets in `seconds`, but past the depth before;
        `progress` gets the tokens done. `depths` are then those that were reached: one that is little deeper
        than the one before would tell nothing new.
        """
        model, start, began = self._model, 0, self._clock()
        model.release(SEQUENCE)
        *before, deepest = self.depths
        least = before[-1] if before else deepest
        for depth in self.depths:
            while start < depth and not (start >= least and self._clock() - began > seconds):
                end = min(start + _CHUNK, start + model.capabilities.max_batch, depth)
                model.forward([Rows(SEQUENCE, start, self._tokens[start:end], 0)])
                start = end
                progress(start)
            if depth < deepest and not self._truncates:
                self._snapshots[depth] = model.snapshot(SEQUENCE)
        reached = start if start == deepest or start >= DEEPER * least else least
        self.depths = sorted({*before, reached})
        if self._truncates:
            model.truncate(SEQUENCE, reached)
        if reached not in self._snapshots:
            self._snapshots[reached] = model.snapshot(SEQUENCE)
        self._depth = reached

    def go_to(self, depth: int) -> None:
        """Make the sequence `depth` tokens long. On the way to the largest depth snapshots are timed."""
        deepest = self.depths[-1]
        if depth == deepest:
            self.restore_times.append(self._ms(lambda: self._restore(deepest)))
            self.snapshot_times.append(self._ms(lambda: self._model.snapshot(SEQUENCE)))
        self._depth = depth
        self._rewind()

    def forward_ms(self, rows: int) -> float:
        """The time of one forward whose rows all return logits; the sequence is as before."""
        batch = [Rows(SEQUENCE, self._depth, self._tokens[self._depth : self._depth + rows], rows)]
        elapsed = self._ms(lambda: self._model.forward(batch))
        self.threads_left_out |= self._model.idle_threads > 0
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
        self.resized: list[float] = []
        self._times: dict[int, list[float]] = {size: [] for size in sizes}
        self._ratios: dict[int, list[float]] = {size: [] for size in sizes}

    @property
    def count(self) -> int:
        """The forwards that were timed."""
        return len(self._singles) + len(self.resized) + sum(map(len, self._times.values()))

    def unsettled(self) -> list[int]:
        """The sizes whose ratio to a plain forward is still in doubt."""
        return [
            size
            for smaller, size in pairwise(self.sizes)
            if self._out_of_line(size)
            or not (settled(self._ratios[size]) or self._long_enough(size, smaller))
        ]

    def _out_of_line(self, size: int) -> bool:
        """Whether it seems to take much longer than more rows do: several hiccups agreed by chance."""
        larger = [self._ratios[other] for other in self.sizes if other > size]
        known = [median(ratios) for ratios in larger if settled(ratios)]
        return bool(self._ratios[size] and known) and median(self._ratios[size]) > TOLERANCE * min(known)

    def _long_enough(self, size: int, smaller: int) -> bool:
        """Whether one forward of this size says enough; `smaller` is the next smaller one."""
        if not self._ratios[size] or not (self._ratios[smaller] or smaller == 1):
            return False
        ratio = median(self._ratios[size])
        before = median(self._ratios[smaller]) if smaller > 1 else 1.0
        return ratio >= VERY_LONG and ratio / size <= DEARER * before / smaller

    def add(self, sequence: _Sequence, order: Sequence[int], progress: Callable[[float], None]) -> float:
        """Time one forward of each size, between plain ones. `progress` gets the work that is done, in plain
        forwards; returns all of it, or 0 if nothing of it counts, because a forward had fewer threads.
        """
        sequence.threads_left_out = False
        pairs = [self._pair(sequence)]
        times: list[float] = []
        work = 0.0
        for size in order:
            times.append(sequence.forward_ms(size))
            pairs.append(self._pair(sequence))
            work += _work(size)
            progress(work)
        if sequence.threads_left_out:
            return 0.0
        singles = [ms for _, ms in pairs]
        for i, (size, ms) in enumerate(zip(order, times, strict=True)):
            near = singles[max(0, i - 1) : i + 3]  # two before, two after
            self._times[size].append(ms)
            self._ratios[size].append(ms / max(median(near), 1e-6))
        self._singles += singles
        self.resized += [first / max(ms, 1e-6) - 1.0 for first, ms in pairs]
        return work

    def _pair(self, sequence: _Sequence) -> tuple[float, float]:
        """A plain forward, and one after it."""
        return sequence.forward_ms(1), sequence.forward_ms(1)

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


def settled(ratios: Sequence[float]) -> bool:
    """Whether another measurement would hardly change the median: see above."""
    middle = median(ratios) if ratios else 0.0
    if len(ratios) < (2 if middle >= LONG else LEAST_PASSES):
        return False
    ranked = sorted(ratios)
    most = max(-(-3 * len(ranked) // 4), 2)
    narrowest = min(high - low for low, high in zip(ranked, ranked[most - 1 :], strict=False))
    return narrowest <= SETTLED * middle


class _Bar:
    """Progress as a fraction that only grows, though how much is to be done shows on the way. Work is counted
    in plain forwards.
    """

    def __init__(self, report: Callable[[float], None] | None, fill: float) -> None:
        self._report = report
        self._begun = self._expected = fill
        self._done = 0.0
        self._shown = 0.0

    def expect(self, more: float) -> None:
        """So much there is still to do, beside what was begun."""
        self._expected = self._begun + more

    def begin(self, work: float) -> None:
        """So much more is done; what is shown from now on comes on top of it."""
        self._done += work
        self._begun = max(self._begun, self._done)

    def show(self, work: float) -> None:
        """So much of what was begun is done."""
        fraction = min((self._done + work) / self._expected, 1.0)
        self._shown = max(self._shown, fraction)
        if self._report is not None:
            self._report(self._shown)

    def done(self) -> None:
        """Everything is."""
        if self._report is not None:
            self._report(1.0)
