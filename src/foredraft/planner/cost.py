"""V(n): the cost of a target forward with n rows, learnt from rounds as they are measured.

V(n) has the unit of a plain forward of one request, V(1). Machines are busy now and then, and all forwards
slow down alike; so a forward is compared with plain ones of the same few rounds, and a stall distorts no
size. V(n) depends on the context depth, as every row reads the whole KV cache (measured, 135M Q4_0 on a
processor: V(16) is 4.1 at 64 tokens, 8.6 at 4,000), and on the batch size.

**What was not measured in this process is a prior, never a fact.** A size that looks too expensive is not
used, and so never measured again. So a stored value, and one measured long ago, counts only where it is
cheaper than a curve through the others; what was measured at another depth or batch size counts as two
measurements; and fewer than `FEW` measurements never make drafts look more expensive than before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf, isfinite
from typing import Any

import numpy as np

from foredraft.planner.cost_key import (
    USUAL,
    Condition,
    Key,
    band_of,
    batch_class,
    depth_of,
    distance,
    in_passes,
)
from foredraft.types import MAX_DRAFT_TOKENS, Load, Round

PRIOR_SLOPE = 0.45
"""Cost of a further row in V(1) where nothing is known: a processor's, pessimistic on purpose."""

BEYOND = 0.5
"""Share of what a row cost in the last doubling that one costs beyond the largest size measured. A curve that
flattens would not be found otherwise; where it does not, one draft shows it."""

FEW = 4
"""Measurements of all sizes from which they may make drafts look more expensive than they did before; and of
one size from which it may cost more than a larger one."""

WINDOW = 15
"""Measurements in a rolling median."""

ODD_FACTOR = 3.0
"""A value this many times off what is expected is ignored, alone in any case, until such values in a row
outnumber the others."""

TOLERANCE = 1.4
"""How much more expensive than a larger forward a smaller one may be. Kernels that compute four rows at once
make 8 rows cheaper than 7 (measured: 2.85 and 3.56, Q4_0 on a processor); a larger fall is an error."""

NEAR_ROUNDS = 4
"""Rounds within which two forwards are compared. A stall that begins in between spoils no more than these."""

STALE_ROUNDS = 128
"""Rounds without a plain forward after which one is due. It costs at most 1/128 of what drafting gains."""

OUTDATED_ROUNDS = 1000
"""Rounds after which a measurement counts only where it is cheap."""

_LARGEST = MAX_DRAFT_TOKENS + 1
"""Rows of the longest draft and the token before it."""

_KERNEL_ROWS = 8
"""Kernels compute four or eight rows at a time, so that single rows are free now and then."""

Point = tuple[int, float, int]
"""Rows, V(n)/V(1), and how many measurements stand behind it."""

_Baseline = tuple[deque[tuple[int, float]], deque[float]]
"""The last plain forwards, each with its round and V(1) in ms, and V(1) in ms by forwards of all sizes."""


def _no_baseline() -> _Baseline:
    return deque(maxlen=3), deque(maxlen=WINDOW)


def median(values: Iterable[float]) -> float:
    """The median of one value or more. `statistics.median` takes three times as long."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def pooled(points: Sequence[Point]) -> list[tuple[int, float]]:
    """The values of `points` (sorted by rows), none more than `TOLERANCE` times a later one, nor above it at
    all with fewer than `FEW` measurements.

    Neighbours that fall by more get the weighted lower median of their values (Barlow et al. 1972, pool
    adjacent violators for absolute errors). So one bad measurement gives way to its neighbours in whichever
    direction it is wrong.
    """
    pools: list[tuple[float, float, list[Point]]] = []  # the least that a later value may be, value, members
    for point in points:
        value, members = point[1], [point]
        while pools and pools[-1][0] > value:
            members = pools.pop()[2] + members
            value = _lower_median(members)
        least = value / TOLERANCE if sum(weight for _, _, weight in members) >= FEW else value
        pools.append((max(least, pools[-1][0]) if pools else least, value, members))
    return [(rows, value) for _, value, members in pools for rows, _, _ in members]


def _lower_median(points: Sequence[Point]) -> float:
    ordered = sorted((value, weight) for _, value, weight in points)
    weights = np.cumsum([weight for _, weight in ordered])
    return ordered[int(np.searchsorted(weights, weights[-1] / 2))][0]


def through(points: Sequence[tuple[int, float]], most: int) -> list[float]:
    """V(n)/V(1) of 0 to `most` rows: linear between `points`; beyond them see `BEYOND`."""
    rows, values = zip(*points, strict=True)
    costs = np.interp(np.arange(most + 1), rows, values)
    last, value = points[-1]
    if last < most:
        half = float(np.interp(last / 2, rows, values))
        mean = (value - 1.0) / max(last - 1, 1)
        slope = BEYOND * max((value - half) / (last / 2), mean / 2) if last > 1 else PRIOR_SLOPE
        costs[last:] = value + slope * np.arange(most + 1 - last)
    return list(costs.tolist())


def _measured_as(rows: int) -> int:
    """The size as which a forward counts: large ones are rounded up, as bounds need it."""
    return rows if rows <= _LARGEST else rows + -rows % 16


@dataclass(slots=True)
class _Size:
    """What was measured of one number of rows."""

    prior: float
    """The value that was expected before."""
    values: deque[float] = field(default_factory=deque)
    value: float = 0.0
    at: int = 0
    """The round of the last measurement."""
    drawn: float = 0.0
    """The value that the curve was drawn through."""


class RelativeCosts:
    """V(n)/V(1) at one batch size and context depth. `now` arguments count rounds.

    `like`: what is known of another depth or batch size; `stored`: of an earlier run. By rows.
    """

    def __init__(self, like: Mapping[int, float], stored: Mapping[int, float], now: int) -> None:
        self._stored = stored
        self._sizes = {
            rows: _Size(value, deque([value] * 2, WINDOW), value, now)
            for rows, value in like.items()
            if rows > 1
        }
        self._odd: dict[int, list[float]] = {}  # by rows: odd values since the last other one
        self.version = 0
        """Grows whenever the curve is drawn anew."""
        self._row_costs: dict[int, float] = {}
        self._measured = 0
        self._valid_until = -1
        self._costs: list[float] = []
        self._bounds: list[float] = []

    @property
    def largest(self) -> int:
        """The largest size known."""
        return max(1, 1, *self._stored, *self._sizes)

    def upto(self, most: int, now: int) -> list[float]:
        """V(n)/V(1) of 0 to at least `most` rows."""
        if now > self._valid_until or len(self._costs) <= most:
            self._draw(max(most, 2 * _LARGEST), now)
        return self._costs

    def bounds_upto(self, most: int, now: int) -> list[float]:
        """Upper bounds of V(n)/V(1), of as many: the cheapest way to have n rows in forwards of a size known.

        V(n) grows, and V(a + b) ≤ V(a) + V(b); so V(n) ≤ ⌈n/m⌉ V(m) for every m.
        """
        costs = self.upto(most, now)
        if not self._bounds:
            known = {1: 1.0, **self._stored, **{rows: size.value for rows, size in self._sizes.items()}}
            rows, values = np.array(list(known.items())).T[:, :, None]
            bounds = (np.ceil(np.arange(len(costs)) / rows) * values).min(axis=0)
            self._bounds = np.maximum(bounds, costs).tolist()
        return self._bounds

    def row_cost(self, first: int, now: int) -> float:
        """The least that a row costs, averaged over any `_KERNEL_ROWS` of the longest draft after `first`."""
        costs = self.upto(first + _LARGEST, now)
        if first not in self._row_costs:
            sizes = range(first, first + _LARGEST - _KERNEL_ROWS)
            self._row_costs[first] = min(costs[n + _KERNEL_ROWS] - costs[n] for n in sizes) / _KERNEL_ROWS
        return self._row_costs[first]

    def learn(self, rows: int, cost: float, now: int, *, sure: bool = False) -> None:
        """A forward of `rows` rows took `cost` times as long as a plain one of the same time; `sure`: that is
        the best of several measurements.
        """
        rows = _measured_as(rows)
        expected = self.upto(rows, now)[rows]
        size, odd = self._sizes.get(rows), self._odd.setdefault(rows, [])
        outdated = size is not None and now - size.at > OUTDATED_ROUNDS
        values = size.values if size and not outdated else deque[float](maxlen=WINDOW)
        least = expected / ODD_FACTOR if size or rows in self._stored else 0.0  # drafts may turn out cheap
        if sure or least < cost < expected * ODD_FACTOR:
            values.append(cost)
        else:
            odd.append(cost)
            if len(odd) <= min(max(len(values), 1), WINDOW // 2):
                return
            values = deque(odd, WINDOW)
        odd.clear()
        if size is None:
            size = self._sizes[rows] = _Size(self._stored.get(rows, expected))
        size.at, size.values, size.value = now, values, median(values)
        self._measured += 1
        # One that was outdated is certain again, also where its value is the old one.
        if outdated or self._measured <= FEW or abs(size.value - size.drawn) > 0.01 * size.drawn:
            self._valid_until = -1

    def is_uncertain(self, rows: int, now: int) -> bool:
        """Whether that size was not measured in this process, or long ago."""
        size = self._sizes.get(_measured_as(rows))
        return size is None or now - size.at > OUTDATED_ROUNDS

    def known(self, now: int) -> dict[int, float]:
        """V(n)/V(1) of the sizes known, as the curve has them."""
        costs = self.upto(self.largest, now)
        return {rows: costs[rows] for rows in sorted({1, *self._stored, *self._sizes})}

    def _draw(self, most: int, now: int) -> None:
        points, doubtful = [(1, 1.0, 2 * WINDOW)], dict(self._stored)  # V(1)/V(1) is certain
        self._valid_until = 1 << 62
        for rows, size in sorted(self._sizes.items()):
            size.drawn = value = size.value
            value = max(1.0, value if self._measured >= FEW else min(value, size.prior))
            doubtful.pop(rows, None)
            if now - size.at > OUTDATED_ROUNDS:
                doubtful[rows] = value
            else:
                points.append((rows, value, len(size.values)))
                self._valid_until = min(self._valid_until, size.at + OUTDATED_ROUNDS)
        most = max(most, self.largest)
        self._costs = through(pooled(points), most)
        if doubtful:
            points += [
                (rows, min(value, self._costs[rows]), 1) for rows, value in doubtful.items() if rows > 1
            ]
            self._costs = through(pooled(sorted(points)), most)
        self._bounds, self._row_costs = [], {}
        self.version += 1


@dataclass(frozen=True, slots=True)
class Passes:
    """What the next forward costs where drafts of several requests are passes of their own, in V(1)."""

    base: float
    """The rows that there are without drafts."""
    plain: float
    """The forward without drafts, with what its size costs if the last forward had another one."""
    change: float
    """What a change of forward size costs, there and back."""
    added: Sequence[float]
    """By draft length: what a draft adds as a pass of its own."""
    even: Sequence[float]
    """By the longest draft's length: the forward with all requests filled up to that, in one pass."""

    def cost(self, lengths: Sequence[int]) -> float:
        """The forward with drafts of these lengths: in passes or filled up, whichever is cheaper."""
        if not any(lengths):
            return self.plain
        passes = self.base + sum(map(self.added.__getitem__, lengths))
        return self.change + min(passes, self.even[max(lengths)])


class CostCurve:
    """V(n), the cost of a target forward with n rows, in plain forwards of one request: by batch size and
    context depth. `ragged`: as in the model's `Capabilities`.

    V(1) is a plain forward after another one, V(n) a forward of n rows after one of another size: a backend
    that keeps the last forward's graph makes another when the size changes, and its buffers are cold
    (measured, 135M with llama.cpp: 0.4 ms on the way to more rows and 0.8 ms back, of 5.8). What a change
    costs is learnt from plain forwards: the first after a draft, and the second.
    """

    def __init__(self, *, ragged: bool = True) -> None:
        self._ragged = ragged
        self._batch_size = 1
        self._key: Key = (1, 0, USUAL)
        self._curve = RelativeCosts({}, {}, 0)
        self._curves = {self._key: self._curve}
        self._pass_curve: RelativeCosts | None = None
        self._pass_curves: dict[Key, RelativeCosts] = {}  # of drafts that are passes
        self._break_even: tuple[tuple[object, ...], float] = (), 1.0
        self._baselines: dict[Condition, _Baseline] = {}
        self._plain, self._single_ms = self._baselines[USUAL] = _no_baseline()
        self._baseline_ms: float | None = 0.0
        self._last_rows = 0  # of the last forward; 0 if it was of another kind
        self._first_ms: float | None = None  # the last forward's, if it was plain and changed the size
        self._load_size_change(0.0)
        self.rounds = 0
        """Rounds of decoding measured."""

    def _load_size_change(self, cost: float) -> None:
        self._size_changes = deque([cost] * (FEW - 1), WINDOW)
        self.size_change = cost
        """What a forward costs more, in V(1), if the one before it had another number of rows."""

    @property
    def known(self) -> bool:
        """Whether a plain forward was measured."""
        return any(single_ms for _, single_ms in self._baselines.values())

    @property
    def stale(self) -> bool:
        """Whether a plain forward is due, to measure the baseline of as many threads as compute now: also
        after one of a size that is not known, to which no plain one was near. Many of these would take the
        baseline along.
        """
        if not self._plain:
            return self.known
        drafted = self._last_rows > self._batch_size and self._pass_curve is None
        if drafted and self._curve.is_uncertain(self._last_rows, self.rounds):
            return True
        return self.rounds - self._plain[-1][0] >= STALE_ROUNDS

    @property
    def baseline_ms(self) -> float:
        """V(1) now, in milliseconds: a rolling median over forwards of all sizes with as many threads as
        compute now, and with the same adapters, or before there are any, the last one known; 0 before one is.
        """
        if self._baseline_ms is None:
            self._baseline_ms = median(self._single_ms)
        return self._baseline_ms

    def focus(self, load: Load) -> None:
        """From now on this is about forwards with this load: its depth, the number of requests, the threads
        left out (135M on two threads and on one: V(2) 1.11 and 1.24, V(8) 2.3 and 3.3) and the adapters.

        What is new has a prior: the nearest depth of the nearest batch size that is no larger, first of the
        same adapters and of as many threads. Each further adapter is a pass that costs as much as a plain
        forward.
        """
        self._batch_size = max(load.decoding, 1)
        condition = load.idle_threads, load.adapters
        key = batch_class(self._batch_size), band_of(load.depth), condition
        if key == self._key:
            return
        if condition != self._key[2]:
            self._change_condition(condition)
        if key not in self._curves:
            near = min((known for known in self._curves if known[0] <= key[0]), key=partial(distance, key))
            like, now = self._curves[near], self.rounds
            more = max(0, len(load.adapters) - max(1, len(near[2][1])))
            self._curves[key] = RelativeCosts(in_passes(like.known(now), more), {}, now)
            if key[0] > 1 and not self._ragged:
                self._pass_curves[key] = RelativeCosts(self._pass_curves.get(near, like).known(now), {}, now)
        self._key, self._curve = key, self._curves[key]
        self._pass_curve = self._pass_curves.get(key)

    def _change_condition(self, condition: Condition) -> None:
        last_known = self.baseline_ms
        self._plain, self._single_ms = self._baselines.setdefault(condition, _no_baseline())
        self._baseline_ms = None if self._single_ms else last_known
        self._first_ms = None

    # --- what the next forward costs ------------------------------------------------------------------

    def costs(self, count: int, extra_rows: int = 0) -> list[float]:
        """The next forward with 0 to `count` - 1 draft tokens beside a row of each request and `extra_rows`
        that are computed in any case, with what a change of size costs, now and on the way back. Where drafts
        are passes of their own: with one draft.

        Whether the forward after that goes back is not known. Charged at once, and to a plain forward that
        follows a drafted one as well, it comes out the same: after a change only going on with another size
        is more expensive.
        """
        passes = self.passes(count, extra_rows)
        if passes is not None:
            return [passes.cost([length]) for length in range(count)]
        plain = self._batch_size + extra_rows
        return self._with_change(self._curve.upto(plain + count, self.rounds), plain, count, self._last_rows)

    def bounds(self, count: int, extra_rows: int = 0) -> list[float]:
        """Upper bounds of `costs`, by the sizes measured: see `RelativeCosts.bounds_upto`."""
        plain, now = self._batch_size + extra_rows, self.rounds
        by_rows = self._curve.bounds_upto(plain + count, now)
        bounds = self._with_change(by_rows, plain, count, self._last_rows)
        if self._pass_curve is None:
            return bounds
        added, costs = self._pass_curve.bounds_upto(count, now), self.costs(count, extra_rows)
        base = by_rows[plain] + self.size_change
        return [bounds[0], *(max(costs[n], base + added[n]) for n in range(1, count))]

    def _with_change(self, by_rows: Sequence[float], plain: int, count: int, before: int) -> list[float]:
        """V(n) from `plain` rows on, after a forward of `before` rows."""
        costs, change = list(by_rows[plain : plain + count]), self.size_change
        if change:
            costs = [cost + change for cost in costs]
            costs[0] = max(0.5 * by_rows[plain], costs[0] - change * ((before == plain) + (plain > 1)))
            if plain < before < plain + count:
                costs[before - plain] -= change
        return costs

    @property
    def in_passes(self) -> bool:
        """Whether drafts of several requests are computed in passes of their own."""
        return self._pass_curve is not None

    def passes(self, count: int, extra_rows: int = 0) -> Passes | None:
        """What drafts of up to `count` - 1 tokens each cost where those of several requests are computed in
        passes of their own; None elsewhere.
        """
        if self._pass_curve is None:
            return None
        plain, now = self._batch_size + extra_rows, self.rounds
        by_rows = self._curve.upto(max(plain, _LARGEST), now)
        base, change = by_rows[plain], self.size_change
        added = [0.0, *self._pass_curve.upto(count, now)[1:count]]
        sizes = [plain * size for size in range(2, count + 1)]
        even = [max(base, by_rows[rows]) if rows <= _LARGEST else inf for rows in sizes]
        return Passes(
            base, max(0.5 * base, base - change * (self._last_rows == plain)), change, added, [base, *even]
        )

    def forward_cost(self, rows: int, lengths: Sequence[int] = ()) -> float:
        """A forward of `rows` rows, drafts of these lengths among them, after one of another size."""
        passes = self.passes(max(lengths, default=0) + 1)
        if passes is None or not any(lengths):
            return self._curve.upto(rows, self.rounds)[rows]
        return passes.cost(lengths) - passes.change

    @property
    def per_request(self) -> float:
        """What a plain forward costs each request."""
        return self.forward_cost(self._batch_size) / self._batch_size

    def row_cost(self) -> float:
        """The least that a further row costs, on average over any `_KERNEL_ROWS` of the longest draft. A
        token that is less likely than this ÷ `per_request` never pays.
        """
        curves = [(self._curve, self._batch_size)]
        curves += [(self._pass_curve, 1)] if self._pass_curve else []
        return max(0.0, min(curve.row_cost(first, self.rounds) for curve, first in curves))

    def break_even(self, margin: float) -> float:
        """The least probability of every draft token with which a draft of one request pays; 1 if none does.

        That is the smallest s with 1 + s + … + s^k ≥ `margin` × (1 + the cost of k tokens ÷ `per_request`).
        """
        curve, first = (self._pass_curve, 0) if self._pass_curve else (self._curve, self._batch_size)
        costs = curve.upto(first + _LARGEST, self.rounds)
        if self._break_even[0] != (version := (curve, curve.version, first, self.size_change, margin)):
            added = np.array(costs[first + 1 : first + _LARGEST]) - (costs[first] if first else 0.0)
            wanted = margin * (1.0 + (added + self.size_change) / self.per_request)
            lengths, low, high = np.arange(1, _LARGEST), 0.0, 1.0
            for _ in range(10):
                middle = (low + high) / 2
                pays = bool((1.0 + np.cumsum(middle**lengths) >= wanted).any())
                low, high = (low, middle) if pays else (middle, high)
            self._break_even = version, high
        return self._break_even[1]

    # --- learning -------------------------------------------------------------------------------------

    def learn(self, measured: Round) -> float:
        """A round is over. Returns what its drafts added to it, in V(1): as measured, but no less than the
        curve says and, as a stall is not theirs, no more than the upper bound of that.

        A round with rows of a prompt, which have no logits, or with rows that are computed again says nothing
        about V(n).
        """
        load, rows, ms = measured.load, measured.rows, measured.forward_ms
        lengths = [len(outcome.draft) for _, outcome in measured.outcomes if outcome.draft]
        self.focus(load)
        self.rounds += bool(measured.outcomes)
        if load.prefill_rows or load.to_recompute:
            self._last_rows, self._first_ms = 0, None
            return self._added(lengths, 0, 0.0)
        before, self._last_rows = self._last_rows, rows
        if rows > 1:
            change, sure = self.size_change * (rows == before), not measured.outcomes
            self._learn_size(rows, ms, change, lengths, sure=sure)
        change = self.size_change * ((rows != before) - (rows > 1))
        cost = self.forward_cost(rows, lengths)
        cost = max(0.5 * cost, cost + change)  # a change of size that cost more was a stall
        if rows == 1 or (measured.outcomes and not lengths):
            self._plain.append((self.rounds, ms / cost))
            self._learn_size_change(ms, ms / cost, before)
        elif not self.known:
            return 0.0
        self._single_ms.append(ms / cost)
        self._baseline_ms = None
        return self._added(lengths, before, ms / max(self.baseline_ms, 1e-9))

    def _added(self, lengths: Sequence[int], before: int, measured: float) -> float:
        """What drafts of these lengths added to a forward that cost `measured` after one of `before` rows."""
        plain, count = self._batch_size, sum(lengths) + 1
        passes = self.passes(max(lengths, default=0) + 1)
        if passes is not None and any(lengths):
            return passes.cost(lengths) - passes.base + self.size_change * (before == plain)
        costs = self._with_change(self._curve.upto(plain + count, self.rounds), plain, count, before)
        bounds = self._with_change(self._curve.bounds_upto(plain + count, self.rounds), plain, count, before)
        return min(max(measured, costs[-1]), bounds[-1]) - costs[0]

    def _learn_size(self, rows: int, ms: float, change: float, lengths: Sequence[int], *, sure: bool) -> None:
        """A forward of `rows` rows took `ms`, less by `change` V(1) than after one of another size."""
        near = [single for at, single in self._plain if self.rounds - at <= NEAR_ROUNDS]
        if not near:
            return
        cost = ms / max(median(near), 1e-9) + change
        passes = self.passes(max(lengths) + 1) if lengths else None
        if self._pass_curve is None or passes is None:
            self._curve.learn(rows, cost, self.rounds, sure=sure)
            return
        expected = sum(passes.added[length] for length in lengths)
        if passes.even[max(lengths)] < passes.base + expected:
            self._curve.learn(self._batch_size * (1 + max(lengths)), cost, self.rounds)
            return
        share = max(cost - passes.base, 0.0) / expected
        for length in lengths:
            if length > 1:  # one row is taken to cost what it does alone
                self._pass_curve.learn(length, passes.added[length] * share, self.rounds)

    def _learn_size_change(self, ms: float, single_ms: float, before: int) -> None:
        """A plain forward took `ms`, after one of `before` rows."""
        if before != self._last_rows:
            self._first_ms = ms if before else None
        elif self._first_ms is not None:
            self._size_changes.append((self._first_ms - ms) / max(single_ms, 1e-9))
            self._first_ms = None
            self.size_change = max(median(self._size_changes), 0.0)

    # --- what is kept between runs --------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What is kept between runs, as a JSON object; empty before a plain forward with all threads was
        measured.

        Milliseconds of one request's forwards, by depth and rows, and what a change of size costs; with all
        threads.
        """
        _, single_ms = self._baselines[USUAL]
        if not single_ms:
            return {}
        baseline_ms = median(single_ms)
        alone = {band: it for (batch, band, how), it in self._curves.items() if (batch, how) == (1, USUAL)}
        curves = {str(depth_of(band)): it for band, it in sorted(alone.items())}
        return {
            "milliseconds": {
                depth: {str(rows): cost * baseline_ms for rows, cost in it.known(self.rounds).items()}
                for depth, it in curves.items()
            },
            "size_change": self.size_change,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Begin with what an earlier run kept, as a prior; depths and rows may be text, as in JSON.

        Raises ValueError where it is damaged.
        """
        curves = {}
        try:
            change = float(state.get("size_change", 0.0))
            for depth, sizes in state.get("milliseconds", {}).items():
                ms = {int(rows): float(value) for rows, value in sizes.items()}
                if min(ms) != 1 or int(depth) < 0 or not all(isfinite(it) and it > 0 for it in ms.values()):
                    raise ValueError(f"no usable costs at a depth of {depth} tokens")
                costs = {rows: value / ms[1] for rows, value in sorted(ms.items())}
                curves[1, band_of(int(depth)), USUAL] = RelativeCosts({}, costs, self.rounds)
        except (AttributeError, TypeError) as error:
            raise ValueError(f"a damaged cost curve: {error}") from None
        if not 0.0 <= change < inf:
            raise ValueError(f"a change of forward size that costs {change}")
        self._curves.update(curves)
        self._curve = self._curves[self._key]
        self._load_size_change(change)
