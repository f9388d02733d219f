"""How llama.cpp divides a forward of several sequences into passes over the weights, and when to prevent it.

With a stream of KV cells for each sequence one pass holds sequences whose numbers follow one another, with
as many rows each (`split_equal`): rows 3 1 are two passes, 3 1 3 1 three, and sequences 0 and 2 two. Where
a forward waits for the weights, a pass costs more than rows: with AMX 3 1 took 3.2 V(1), and 3 3 2.2. So rows
are filled up, with tokens that are forgotten at once, where that is expected to cost less.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from statistics import median

MOST_ROWS = 64
"""No forward is filled up to more."""

_KEPT = 9
_LARGEST = 32
"""Sizes up to which rows are about equally dear."""


def count_passes(rows: Mapping[int, int]) -> int:
    """The passes of a forward with so many rows of each sequence, given in ascending order."""
    left = {seq: count for seq, count in sorted(rows.items()) if count}
    passes = 0
    while left:
        run = [min(left)]
        while run[-1] + 1 in left:
            run.append(run[-1] + 1)
        taken = min(left[seq] for seq in run)
        left = {seq: count - taken * (seq in run) for seq, count in left.items()}
        left = {seq: count for seq, count in left.items() if count}
        passes += 1
    return passes


class Passes:
    """Learns what a pass and a row cost from forwards of one pass."""

    def __init__(self) -> None:
        self._ms: dict[int, deque[float]] = {}

    def took(self, rows: Mapping[int, int], ms: float) -> None:
        """A forward with so many rows of each sequence, all with logits, took `ms`."""
        total = sum(rows.values())
        if total <= _LARGEST and count_passes(rows) == 1:
            self._ms.setdefault(total, deque(maxlen=_KEPT)).append(ms)

    def costs(self) -> tuple[float, float] | None:
        """Milliseconds of a pass and of a row; None before forwards of two sizes were seen.

        A single row has kernels of its own: sizes from 2 on tell more.
        """
        sizes = sorted(self._ms)
        if len(sizes) > 2 and sizes[0] == 1:
            sizes = sizes[1:]
        if len(sizes) < 2:
            return None
        least, most = median(self._ms[sizes[0]]), median(self._ms[sizes[-1]])
        row = max((most - least) / (sizes[-1] - sizes[0]), 0.0)
        return max(least - sizes[0] * row, 0.0), row

    def evened(self, rows: Mapping[int, int]) -> int:
        """Up to how many rows each sequence from the first to the last is to be filled up, those between them
        that have none included; 0: none.
        """
        if len(rows) < 2:
            return 0
        many, most = max(rows) - min(rows) + 1, max(rows.values())
        filler = many * most - sum(rows.values())
        if not filler or many * most > MOST_ROWS:
            return 0
        costs = self.costs()
        if costs is None:
            return 0
        a_pass, a_row = costs
        return most if filler * a_row < (count_passes(rows) - 1) * a_pass else 0
