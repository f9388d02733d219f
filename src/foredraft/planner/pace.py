"""How fast the machine is just now: V(1) in milliseconds, whatever sizes its last forwards had.

V(1) grows with the context and jumps when the machine is busy with something else. Both change all forwards
alike. So a forward may only be compared with a plain one of the same time: one from before a stall makes
every draft look ten times dearer than it is.
"""

from __future__ import annotations

from collections import deque

from foredraft.planner.tables.window import Window, median

NEAR = 4
"""Rounds within which two forwards are of the same time. Few, so that a stall that begins just after a plain
forward spoils few comparisons.
"""

STALE = 128
"""Rounds without a plain forward after which one is due. It costs at most 1/128 of the gain."""


class Pace:
    """V(1) now, from the milliseconds that one row took, or would have, in each forward. `at`: the round."""

    def __init__(self) -> None:
        self._recent = Window()
        self._plain: deque[tuple[int, float]] = deque(maxlen=3)
        self._ms: float | None = 0.0

    @property
    def known(self) -> bool:
        return len(self._recent) > 0

    @property
    def ms(self) -> float:
        """V(1) in milliseconds, from forwards of all sizes; 0 before there was one."""
        if self._ms is None:
            self._ms = self._recent.median()
        return self._ms

    def plain(self, ms: float, at: int) -> None:
        """A forward without drafts: what others are compared with."""
        self._plain.append((at, ms))
        self._add(ms)

    def drafted(self, ms: float) -> None:
        """A forward with drafts."""
        if self.known:
            self._add(ms)

    def _add(self, ms: float) -> None:
        self._recent.add(ms)
        self._ms = None

    def near(self, at: int) -> float | None:
        """V(1) by the plain forwards shortly before round `at`; None if there were none."""
        values = [value for seen, value in self._plain if at - seen <= NEAR]
        return median(values) if values else None

    def stale(self, at: int) -> bool:
        """Whether the last plain forward is so long ago that there should be another."""
        return bool(self._plain) and at - self._plain[-1][0] >= STALE
