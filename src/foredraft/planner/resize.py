"""What a forward takes longer whose number of rows is another than that of the forward before it.

A backend that keeps the last forward's graph builds a new one when the shape changes, and its buffers are
cold. Measured, 135M on a CPU with llama.cpp: 0.4 ms on the way to more rows and 0.8 ms on the way back, of a
plain forward of 5.8 ms. So a single draft costs more than its rows, and a draft as long as the last one less.
"""

from __future__ import annotations

from foredraft.planner.tables.window import Window

FEWEST = 3
"""Measurements from which they are believed."""

MOST = 0.5
"""Of a plain forward. More was a stall."""


class Resize:
    """Learnt from plain forwards: one after another size, and the one after that, of the same time.

    `value` is in V(1).
    """

    def __init__(self) -> None:
        self._rows = 0
        self._first: float | None = None
        self._samples = Window()
        self.value = 0.0

    @property
    def rows(self) -> int:
        """Of the last forward; 0 where it was of another kind."""
        return self._rows

    def seed(self, value: float) -> None:
        """Begin with what an earlier run has learnt."""
        for _ in range(FEWEST):
            self._samples.add(min(max(value, 0.0), MOST))
        self.value = self._samples.median()

    def forward(self, rows: int) -> bool:
        """A forward of so many rows; 0: of another kind, such as one that reads a prompt. Returns whether the
        one before had as many.
        """
        same = rows == self._rows
        self._rows = rows
        if not same:
            self._first = None
        return same

    def plain(self, ms: float, single_ms: float, *, same: bool) -> None:
        """The last forward was a plain one and took `ms`; one row takes `single_ms`."""
        if not same:
            self._first = ms
            return
        if self._first is not None:
            self._samples.add(min((self._first - ms) / max(single_ms, 1e-9), MOST))
            self._first = None
            if len(self._samples) >= FEWEST:
                self.value = max(self._samples.median(), 0.0)
