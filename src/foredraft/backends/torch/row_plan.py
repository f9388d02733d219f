"""Assigns rows to programs in attention by rows (row_attention.py). No bit depends on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from foredraft.backends.torch.batch import Batch, Segment, paths_of

HEIGHT = 16
"""Minimum rows of a Triton product: the query heads that share keys, of one or more rows."""

SHORTEST = 256
MOST_STRETCHES = 64
"""Limits for the ranges of a sequence: programs work on ranges in parallel, so they are as short as these
allow.
"""

ROOM = 1 << 23
"""Maximum numbers in the sums of ranges if rows can be computed one after another."""


@dataclass(frozen=True, slots=True)
class Part:
    """The rows `first` … `first + rows - 1`, computed at once by `programs` programs. `tiles`, of shape
    (programs, 2): the first row and number of rows of each; None if each has one row.
    """

    first: int
    rows: int
    programs: int
    tiles: Any


@dataclass(frozen=True, slots=True)
class Plan:
    """Data that all layers share. `stretch`: cells of a range; `stretches`: ranges of the longest row.

    `sums` holds weighted sums of values, shape (rows, query heads, stretches, size), and `tops` the largest
    score and the sum of weights, shape (rows, query heads, stretches, 2). `paths`: see `paths_of`.
    """

    parts: tuple[Part, ...]
    paths: Any
    stretch: int
    stretches: int
    sums: Any
    tops: Any


def stretch_of(cells: int) -> int:
    """Cells of a range in a cache with `cells` cells for each sequence."""
    stretch = SHORTEST
    while stretch * MOST_STRETCHES < cells:
        stretch *= 2
    return stretch


def plan_rows(batch: Batch, q: Any, *, cells: int, shared: int) -> Plan:
    """The plan for queries of shape (rows, query heads, size), `shared` of which use the same keys, over
    sequences of `cells` cells.

    A batch without segments will hold any rows: every row has its own programs, for every range of the cache.
    """
    count, heads, size = q.shape
    stretch = stretch_of(cells)
    if not batch.segments:
        stretches, parts = -(-cells // stretch), [Part(0, count, count, None)]
    else:
        stretches = -(-max(segment.start + segment.count for segment in batch.segments) // stretch)
        most = max(1, ROOM // (heads * stretches * size))
        parts = [
            Part(first, rows, len(tiles), torch.tensor(tiles, device=q.device))
            for first, rows, tiles in _parts(batch.segments, max(1, HEIGHT // shared), most)
        ]
    room = (max(part.rows for part in parts), heads, stretches)
    sums, tops = (q.new_empty((*room, last), dtype=torch.float32) for last in (size, 2))
    paths = batch.scratch["paths"] if "paths" in batch.scratch else paths_of(batch)
    return Plan(tuple(parts), paths, stretch, stretches, sums, tops)


def _parts(
    segments: Sequence[Segment], high: int, most: int
) -> Iterator[tuple[int, int, list[tuple[int, int]]]]:
    """(first row, rows, tiles): at most `most` rows at once, in tiles of (first row, rows). Rows of a tree
    are alone, because each has its own ancestors.
    """
    tiles: list[tuple[int, int]] = []
    rows = 0
    for segment in segments:
        step = 1 if segment.parents else min(high, most)
        for first in range(segment.first, segment.end, step):
            count = min(step, segment.end - first)
            if rows + count > most:
                yield tiles[0][0], rows, tiles
                tiles, rows = [], 0
            tiles.append((first, count))
            rows += count
    yield tiles[0][0], rows, tiles
