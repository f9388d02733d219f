"""The batch cost curve V(n), learnt from rounds as they happen: medians, because machines are noisy."""

from __future__ import annotations

from collections import deque
from statistics import median

PRIOR_SLOPE = 0.45
"""Cost of one more row relative to V(1), before anything was measured: a CPU's. Pessimistic on purpose."""

WINDOW = 15


class CostCurve:
    """V(n) in milliseconds for the depth at hand. Ratios V(n)/V(1) change little with depth, V(1) does."""

    def __init__(self) -> None:
        self._single: deque[float] = deque(maxlen=WINDOW)
        self._ratios: dict[int, deque[float]] = {}
        self._known: list[tuple[int, float]] = [(1, 1.0)]
        self._by_rows: list[float] = []

    @property
    def known(self) -> bool:
        """Whether a plain forward has been seen."""
        return bool(self._single)

    @property
    def single_ms(self) -> float:
        return median(self._single) if self._single else 0.0

    def add(self, rows: int, ms: float) -> None:
        """A forward of `rows` rows took `ms`."""
        if rows == 1:
            self._single.append(ms)
        elif self._single:
            self._ratios.setdefault(rows, deque(maxlen=WINDOW)).append(ms / self.single_ms)
            self._rebuild()

    def _rebuild(self) -> None:
        measured = sorted((rows, median(ratios)) for rows, ratios in self._ratios.items())
        self._known = [(1, 1.0), *measured]
        self._by_rows = []

    def ratio(self, rows: int) -> float:
        """V(rows)/V(1): measured where it was, linear between, beyond with the mean slope so far."""
        while len(self._by_rows) < rows:
            self._by_rows.append(self._interpolate(len(self._by_rows) + 1))
        return self._by_rows[rows - 1]

    def _interpolate(self, rows: int) -> float:
        below = max(point for point in self._known if point[0] <= rows)
        above = [point for point in self._known if point[0] > rows]
        if below[0] == rows:
            return below[1]
        if not above:
            slope = (below[1] - 1.0) / (below[0] - 1) if below[0] > 1 else PRIOR_SLOPE
            return below[1] + max(slope, 0.0) * (rows - below[0])
        share = (rows - below[0]) / (above[0][0] - below[0])
        return below[1] + share * (above[0][1] - below[1])
