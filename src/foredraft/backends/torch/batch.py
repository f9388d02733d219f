"""A forward's input as tensors: rows of several sequences packed without padding.

They are packed in the order of their sequences, so that attention finds adjacent ones; logits are in the
order of the request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from foredraft.images import ImageSpan
from foredraft.types import Rows

TOKEN, POSITION, WANTED, SEQUENCE, UNBROKEN, CELL = range(6)
"""Indices of the rows of `Batch.numbers`."""

PATH = 64
"""Maximum rows of a tree for `paths_of`."""


@dataclass(frozen=True, slots=True)
class Branch:
    """A path through a tree: rows of the forward from a root to a leaf, of which the last `new` ones are not
    on an earlier branch.
    """

    path: Any
    new: int


@dataclass(frozen=True, slots=True)
class Segment:
    """The rows `first` … `first + count - 1` of a forward, which follow `start` cells of sequence `seq`.

    `parents` and `branches` are those of a tree, empty for a chain; `branches` is only set on a processor.
    """

    seq: int
    start: int
    first: int
    count: int
    parents: tuple[int, ...] = ()
    branches: tuple[Branch, ...] = ()
    blocks: tuple[tuple[int, int], ...] = ()
    """Cells from the first up to the second whose rows see all of each other: images of some models."""

    @property
    def end(self) -> int:
        """The index after its last row in the forward."""
        return self.first + self.count


@dataclass(frozen=True, slots=True)
class SeenImage:
    """`PreparedImage.data` of this backend: `vectors` are all rows of the image, shape (rows, hidden size).
    `places`, of models with rotary positions in three dimensions, are those of the rows counted from the
    image's first, shape (3, rows); the text goes on `advance` positions after that. `deep`, of models whose
    images also reach deeper layers, is what is added to the rows behind the first layers, each of the shape
    of `vectors`.
    """

    vectors: Any
    places: Any = None
    advance: int = 0
    deep: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Seen:
    """Rows `first` … of a forward that are those of an image, and not embeddings of tokens: `vectors` and
    each of `deep` have shape (rows, hidden size).
    """

    first: int
    vectors: Any
    deep: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Batch:
    """`numbers`, of shape (6, rows), has for each row its token and position, a row that returns logits (for
    the first `wanted` ones), its sequence, the number of contiguous cells that it sees from the first one on,
    and the cell that it is written to.

    `scratch` caches values that every layer computes alike, such as masks, until the forward is over.
    `features` receives the watched hidden states of all rows, each of shape (rows, size). `images` are the
    rows that are no tokens. `places` are the rotary positions in three dimensions, shape (3, rows), of a
    model that has such.
    """

    numbers: Any
    wanted: Any
    segments: tuple[Segment, ...]
    scratch: dict[object, Any] = field(default_factory=dict)
    features: list[Any] = field(default_factory=list)
    images: tuple[Seen, ...] = ()
    places: Any = None

    @property
    def tokens(self) -> Any:
        """Shape (rows,)."""
        return self.numbers[TOKEN]

    @property
    def positions(self) -> Any:
        """Shape (rows,)."""
        return self.numbers[POSITION]


def make_batch(rows: Sequence[Rows], device: Any, *, whole: bool = False) -> Batch:
    """Pack the rows, which the caller has checked. `whole`: rows of an image see all of it."""
    numbers: list[list[int]] = [[] for _ in range(6)]
    ends: dict[int, int] = {}
    segments: list[Segment] = []
    images: list[Seen] = []
    for part in sorted(rows, key=lambda part: part.seq):
        first, count = len(numbers[TOKEN]), len(part.tokens)
        own = range(part.start, part.start + count)
        ends[part.seq] = first + count
        numbers[TOKEN].extend(part.tokens)
        numbers[SEQUENCE].extend([part.seq] * count)
        numbers[CELL].extend(own)
        if part.parents is None or list(part.parents) == list(range(-1, count - 1)):
            numbers[POSITION].extend(own)
            numbers[UNBROKEN].extend(cell + 1 for cell in own)
            images += [_seen(span, first + span.start - part.start) for span in part.images]
            blocks = tuple((span.start, span.end) for span in part.images) if whole else ()
            segments.append(Segment(part.seq, part.start, first, count, blocks=blocks))
            continue
        parents = tuple(part.parents)
        numbers[POSITION].extend(part.start + depth for depth in _depths(parents))
        numbers[UNBROKEN].extend([part.start] * count)
        branches = tuple(
            Branch(torch.tensor([first + row for row in path]), new)
            for path, new in (_branches(parents) if device.type == "cpu" else ())
        )
        segments.append(Segment(part.seq, part.start, first, count, parents, branches))
    wanted = [row for part in rows for row in range(ends[part.seq] - part.logits, ends[part.seq])]
    numbers[WANTED].extend([*wanted, *[0] * (len(numbers[TOKEN]) - len(wanted))])
    made = torch.tensor(numbers, dtype=torch.long, device=device)
    return Batch(made, made[WANTED, : len(wanted)], tuple(segments), images=tuple(images))


def _seen(span: ImageSpan, first: int) -> Seen:
    """The rows of a span, which are `first` and following of the forward."""
    data = span.image.data
    assert isinstance(data, SeenImage)
    begin = sum(count for _, count in span.image.runs[: span.run]) + span.first
    rows = slice(begin, begin + span.rows)
    return Seen(first, data.vectors[rows], tuple(vectors[rows] for vectors in data.deep))


def side_by_side(batch: Batch, rows: Sequence[Rows]) -> Any:
    """A copy of the batch's features in one tensor, in the order of the request; None if there are none."""
    if not batch.features:
        return None
    made = torch.cat(batch.features, -1)
    order = sorted(range(len(rows)), key=lambda index: rows[index].seq)
    if order == list(range(len(rows))):
        return made
    parts = made.split([len(rows[index].tokens) for index in order])
    places = sorted(range(len(rows)), key=order.__getitem__)
    return torch.cat([parts[place] for place in places])


def _depths(parents: Sequence[int]) -> list[int]:
    depths: list[int] = []
    for parent in parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
    return depths


def _branches(parents: Sequence[int]) -> list[tuple[list[int], int]]:
    """(rows from a root to a leaf, how many of the last ones are on no earlier branch) for every leaf."""
    inner = set(parents)
    seen: set[int] = set()
    branches: list[tuple[list[int], int]] = []
    for leaf in range(len(parents)):
        if leaf in inner:
            continue
        path = ancestors(parents, leaf)
        new = sum(row not in seen for row in path)
        seen.update(path)
        branches.append((path, new))
    return branches


def ancestors(parents: Sequence[int], row: int) -> list[int]:
    """The rows from the root to `row`, both included."""
    path: list[int] = []
    while row >= 0:
        path.append(row)
        row = parents[row]
    return path[::-1]


def paths_of(batch: Batch) -> Any:
    """For each row the rows of its tree that it sees, counted from the tree's first one, in the order of
    their positions; shape (rows, `PATH`). None without a tree.
    """
    trees = [segment for segment in batch.segments if segment.parents]
    if not trees:
        return None
    table = np.zeros((batch.numbers.shape[1], PATH), np.int64)
    for tree in trees:
        depths = _depths(tree.parents)
        for row, (parent, depth) in enumerate(zip(tree.parents, depths, strict=True)):
            if parent >= 0:
                table[tree.first + row] = table[tree.first + parent]
            table[tree.first + row, depth] = row
    return torch.from_numpy(table).to(batch.numbers.device)
