# cython: language_level=3, annotation_typing=False, initializedcheck=False, cdivision=True, cpow=True
"""The table that survival is looked up in: counts by source, length of the match and confidence."""

from __future__ import annotations

from array import array
from bisect import bisect

from foredraft.planner.tables.beta import forgets

_CONFIDENCE_EDGES = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98)
_MATCH_EDGES = (2, 3, 4, 6, 8, 12, 16, 24, 32)
_COLUMNS = len(_CONFIDENCE_EDGES) + 1
_ROWS = len(_MATCH_EDGES) + 1

MOST_MATCHED = _MATCH_EDGES[-1]
"""Longer matches count as this long."""

# For compiled code. A cell is two numbers: how many were right, and how many wrong.
_CELL, _WRONG = 2, 1
_SIZE = _CELL * _COLUMNS * _ROWS
_EDGES: memoryview[float] = memoryview(array("d", _CONFIDENCE_EDGES))
_ROW_OF = memoryview(
    array("i", [_CELL * _COLUMNS * bisect(_MATCH_EDGES, i) for i in range(MOST_MATCHED + 1)])
)


class Cells:
    """Counts for each source, by length of the match and confidence."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}
        self._array = array("d")
        self._counts: memoryview[float] = memoryview(self._array)

    def place(self, source: str) -> int:
        """Where a source's cells begin."""
        found = self._places.get(source)
        if found is None:
            found = self._places[source] = _SIZE * len(self._places)
            self._array = self._array + array("d", bytes(8 * _SIZE))
            self._counts = memoryview(self._array)
        return found

    def cell(self, place: int, match: int, confidence: float) -> int:
        """Where the counts are of tokens after a match of so many, at most `MOST_MATCHED`, that their drafter
        is so sure of. `place`: the source's.
        """
        column = 0
        while column < _COLUMNS - 1 and confidence >= _EDGES[column]:
            column += 1
        return place + _ROW_OF[match] + _CELL * column

    def right(self, cell: int) -> float:
        """How many were right."""
        return self._counts[cell]

    def wrong(self, cell: int) -> float:
        """How many were wrong."""
        return self._counts[cell + _WRONG]

    def add(self, cell: int, right: bool) -> None:
        """One was right, or it was not."""
        self._counts[cell if right else cell + _WRONG] += 1.0
        if forgets(self._counts[cell], self._counts[cell + _WRONG]):
            self._counts[cell] /= 2.0
            self._counts[cell + _WRONG] /= 2.0

    def export(self) -> dict[str, list[float]]:
        """As a JSON object: "source|match|confidence" → [right, wrong], of what was seen."""
        counts = self._array
        return {
            f"{source}|{at // _COLUMNS}|{at % _COLUMNS}": [round(counts[cell], 3), round(counts[cell + 1], 3)]
            for source, place in self._places.items()
            for at, cell in enumerate(range(place, place + _SIZE, _CELL))
            if counts[cell] + counts[cell + 1] > 0.0
        }

    def restore(self, name: str, right: float, wrong: float) -> None:
        """Begin with counts from `export`. What does not look like a name of it is left out."""
        source, *buckets = name.rsplit("|", 2)
        if len(buckets) != 2 or not all(bucket.isdecimal() for bucket in buckets):
            return
        row, column = int(buckets[0]), int(buckets[1])
        if row < _ROWS and column < _COLUMNS:
            cell = self.place(source) + _CELL * (row * _COLUMNS + column)
            self._counts[cell] = max(0.0, right)
            self._counts[cell + _WRONG] = max(0.0, wrong)
