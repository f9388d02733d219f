"""Predicts how llama.cpp splits a forward of several sequences into passes, and pads rows to avoid passes.

With a stream of KV cells per sequence, one pass contains sequences with consecutive numbers and the same
number of rows (`split_equal`): rows 3 1 are two passes, 3 1 3 1 three, and sequences 0 and 2 two. If a
forward is limited by reading the weights, a pass costs more than rows: with AMX 3 1 took 3.2 V(1), and 3 3
2.2. So rows are padded with tokens that are dropped at once, if that is expected to cost less.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from statistics import median

MOST_ROWS = 64
"""Maximum rows of a padded forward."""

RECENT = 2048
"""Forwards after which an unused size is dropped: texts grow, and the cost of rows with them."""

SHALLOW = 1024
"""Difference in cells up to which rows of two sequences cost about the same."""

_KEPT, _FEWEST = 9, 3
_LARGEST = 32
"""Sizes up to which rows cost about the same."""


def count_passes(rows: Mapping[int, int]) -> int:
    """The number of passes for these rows by sequence, in ascending order."""
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
    """Learns the cost of a pass and of a row from forwards with one pass. `most`: maximum rows of a pass."""

    def __init__(self, most: int = MOST_ROWS) -> None:
        self._most = min(most, MOST_ROWS)
        self._ms: dict[int, deque[float]] = {}
        self._seen: dict[int, int] = {}
        self._forwards = 0
        self._expected_ms = 0.0
        self._gains: deque[float] = deque(maxlen=_KEPT)
        self._resumes = 0

    def took(self, rows: Mapping[int, int], ms: float) -> None:
        """Learn from an unpadded forward with these rows by sequence, all with logits, that took `ms`."""
        total = sum(rows.values())
        self._forwards += 1
        if total <= min(_LARGEST, self._most) and (len(rows) == 1 or count_passes(rows) == 1):
            if not self._is_recent(total):
                self._ms[total] = deque(maxlen=_KEPT)
            self._ms[total].append(ms)
            self._seen[total] = self._forwards

    def took_evened(self, ms: float) -> None:
        """Learn that the padded forward of the last `evened` call took `ms`. If padded forwards take longer
        than predicted for unpadded ones, padding pauses for a while.
        """
        self._forwards += 1
        self._gains.append(ms / max(self._expected_ms, 1e-9))
        if len(self._gains) >= _FEWEST and median(self._gains) > 1.0:
            self._gains.clear()
            self._resumes = self._forwards + RECENT

    def _is_recent(self, size: int) -> bool:
        return size in self._seen and self._forwards - self._seen[size] <= RECENT

    def costs(self) -> tuple[float, float] | None:
        """Milliseconds of a pass and of a row; None until forwards of two sizes were measured.

        A single row has its own kernels, so sizes from 2 on are better evidence.
        """
        sizes = [size for size in sorted(self._ms) if self._is_recent(size)]
        if len(sizes) > 2 and sizes[0] == 1:
            sizes = sizes[1:]
        if len(sizes) < 2:
            return None
        least, most = median(self._ms[sizes[0]]), median(self._ms[sizes[-1]])
        row = max((most - least) / (sizes[-1] - sizes[0]), 0.0)
        return max(least - sizes[0] * row, 0.0), row

    def evened(self, rows: Mapping[int, int], cells: Mapping[int, int]) -> int:
        """The number of rows to which every sequence from the first to the last is padded, including those
        without rows in between; 0: no padding. `cells` has each sequence's length: rows are only padded if
        they are no more expensive than the existing ones.
        """
        if len(rows) < 2 or self._forwards < self._resumes:
            return 0
        many, most = max(rows) - min(rows) + 1, max(rows.values())
        filler = many * most - sum(rows.values())
        if not filler or many * most > self._most or not min(rows.values()):
            return 0
        limit = max(SHALLOW, 2 * min(cells[seq] for seq in rows))
        if any(cells[seq] > limit for seq in range(min(rows), max(rows) + 1) if rows.get(seq, 0) < most):
            return 0
        costs = self.costs()
        if costs is None:
            return 0
        a_pass, a_row = costs
        passes = count_passes(rows)
        self._expected_ms = passes * a_pass + sum(rows.values()) * a_row
        return most if filler * a_row < (passes - 1) * a_pass else 0
