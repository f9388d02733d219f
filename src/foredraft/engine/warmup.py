"""A few forwards of different sizes when a model is loaded: they warm caches up and seed the cost curve.

The curve V(n) has steps (docs/how-it-works.md): on a CPU 2 rows may cost as much as 3, and 4 hardly more. A
planner that only knows V(1) and V(2) would conclude from a expensive second row that drafting never pays, and
never find out otherwise.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf
from statistics import median
from time import perf_counter

from foredraft.protocols import Model
from foredraft.types import Load, Round, Rows

SIZES = (1, 1, 1, 2, 4, 1, 8, 16, 1, 3, 6, 12, 1, 5, 7, 24, 1, 32, 10, 14, 1, 48)
"""Batch sizes in the order in which they matter: a slow model gets through the first ones only. A plain
forward is timed often: all others are compared with it."""

REQUIRED = frozenset({2, 4, 8, 16})
"""Sizes that are measured once whatever the budget. A curve of V(1) alone would be drawn through the first
draft that is verified, which may be in a busy moment."""

LONG_S = 2.0
"""Expected seconds of required forwards from which `notice` gets a line."""

BASELINE_SIZES = (1, 1, 1, 4)
"""All that is measured where a stored profile has the rest: V(1), and a size that checks the profile."""

_PRIOR = {2: 1.4, 4: 2.4, 8: 4.2, 16: 7.8}
"""V(n)/V(1) of a processor, for an estimate of what the required sizes take."""

REPEATS = 2

NEIGHBOURS = 3
"""Plain forwards that a size is compared with, the fastest of them: one may have been in a busy moment."""

BUDGET_S = 0.5


def measure_costs(
    model: Model,
    seq: int,
    budget_s: float = BUDGET_S,
    *,
    sizes: Sequence[int] = SIZES,
    clock: Callable[[], float] = perf_counter,
    notice: Callable[[str], None] | None = None,
) -> list[Round]:
    """Rounds of `sizes` rows in an empty sequence, for about `budget_s` seconds: at most, if `REQUIRED` sizes
    take no longer.

    Each size is compared with the plain forwards before it, and keeps its best of `REPEATS` turns through all
    of them: a busy moment must not distort one size alone. The fastest of many plain forwards would make all
    others look expensive. A plain forward counts when another one came before it; what the first one after
    another size takes longer is in the rounds as well, as a run has it. Forwards are compared only with those
    of as many threads, and rounds are told apart by it (`Load.idle_threads`). The sequence is empty again
    afterwards. `notice` gets a line where that takes long.
    """
    most = min(model.capabilities.max_rows, model.capabilities.max_batch, model.info.context_length)
    sizes = [size for size in sizes if size <= most]
    began = clock()
    forward = partial(_forward, model, seq, clock)
    forward(1)  # the first forward pages the weights in
    ms, idle = forward(1)
    known = _Costs()
    known.add_plain(ms)
    found, tried, measured, before = {idle: known}, {1}, {1}, 1
    resized = dict[int, list[float]]()  # by threads left out, too
    expected_s = ms / 1e3 * sum(_PRIOR[size] for size in REQUIRED.intersection(sizes))
    if notice is not None and expected_s > LONG_S:
        notice(f"Measuring what verifying drafts costs, once for this model: about {expected_s:.0f} s…")
    for turn in range(REPEATS):
        end = began + budget_s * (turn + 1) / REPEATS
        for size in sizes if turn == 0 else [size for size in sizes if size in tried]:
            required = size in REQUIRED and size not in measured
            if not required and clock() + known.expected_ms(size) / 1e3 > end:
                continue
            at, (ms, idle) = idle, forward(size)
            if size == 1:
                if before != 1 or idle != at:
                    first, (ms, now) = ms, forward(1)
                    if at == idle == now:
                        resized.setdefault(idle, []).append(first - ms)
                    idle = now
                found.setdefault(idle, _Costs()).add_plain(ms)
            elif idle in found:
                found[idle].add(size, ms)
                measured.add(size)
            tried.add(size)
            known, before = found.get(idle, known), size
    in_order = sorted(found, key=lambda number: number == idle)  # a planner goes on with the last
    return [it for number in in_order for it in found[number].rounds(number, resized.get(number, ()))]


class _Costs:
    """What was measured with one number of threads; a plain forward comes first."""

    def __init__(self) -> None:
        self._plain: deque[float] = deque(maxlen=NEIGHBOURS)
        self._fastest = inf
        self._ratios = {1: 1.0}

    def add_plain(self, ms: float) -> None:
        self._plain.append(ms)
        self._fastest = min(self._fastest, ms)

    def add(self, size: int, ms: float) -> None:
        """A forward of several rows, compared with the plain ones before it."""
        self._ratios[size] = min(self._ratios.get(size, inf), ms / min(self._plain))

    def expected_ms(self, size: int) -> float:
        """What a forward of that size takes, by those before it."""
        return self._ratios.get(size, 2 * max(self._ratios.values())) * min(self._plain)

    def rounds(self, idle_threads: int, resized: Sequence[float]) -> list[Round]:
        """As a run would have had them."""
        resize_ms = max(median(resized), 0.0) if resized else 0.0
        return _rounds(self._ratios, self._fastest, resize_ms, Load(1, 0, 0, idle_threads=idle_threads))


def _rounds(ratios: Mapping[int, float], plain_ms: float, resize_ms: float, load: Load) -> list[Round]:
    """As a run would have had them: each size, then a plain forward that takes longer, then a plain one."""
    sizes = [1]
    for rows in ratios:
        sizes += [rows, 1, 1] if rows > 1 else []
    return [
        Round(load, rows, {}, ratios[rows] * plain_ms + (rows == 1 < before) * resize_ms, 0.0, ())
        for before, rows in zip([1, *sizes], sizes, strict=False)
    ]


def _forward(model: Model, seq: int, clock: Callable[[], float], rows: int) -> tuple[float, int]:
    """The milliseconds of a forward, and `Model.idle_threads` in it."""
    began = clock()
    model.forward([Rows(seq, 0, (0,) * rows, rows)])
    elapsed = 1e3 * (clock() - began)
    model.release(seq)
    return elapsed, model.idle_threads
