"""What a forward computes, as tensors: rows of several sequences packed one behind the other, none padded.

They are packed in the order of their sequences, so that attention finds neighbours; logits come in the
order in which they were asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from foretoken.types import Rows


@dataclass(frozen=True, slots=True)
class Branch:
    """A path through a tree: rows of the forward from a root to a leaf, of which the last `new` ones have
    not been on an earlier branch.
    """

    path: Any
    new: int


@dataclass(frozen=True, slots=True)
class Segment:
    """The rows `first` … `first + count - 1` of a forward, which follow `start` cells of sequence `seq`.

    `parents` and `branches` are those of a tree, empty for a chain.
    """

    seq: int
    start: int
    first: int
    count: int
    parents: tuple[int, ...] = ()
    branches: tuple[Branch, ...] = ()

    @property
    def end(self) -> int:
        """One past its last row in the forward."""
        return self.first + self.count


@dataclass(frozen=True, slots=True)
class Batch:
    """`tokens` and `positions` of all rows, shape (rows,); `wanted`: which rows return logits.

    `scratch` keeps what every layer computes alike, such as masks, until the forward is over.
    """

    tokens: Any
    positions: Any
    wanted: Any
    segments: tuple[Segment, ...]
    scratch: dict[object, Any] = field(default_factory=dict)


def make_batch(rows: Sequence[Rows], device: Any) -> Batch:
    """Pack the rows. The caller checked them."""
    tokens: list[int] = []
    positions: list[int] = []
    ends: dict[int, int] = {}
    segments: list[Segment] = []
    for part in sorted(rows, key=lambda part: part.seq):
        first, count = len(tokens), len(part.tokens)
        tokens.extend(part.tokens)
        ends[part.seq] = first + count
        if part.parents is None or list(part.parents) == list(range(-1, count - 1)):
            positions.extend(range(part.start, part.start + count))
            segments.append(Segment(part.seq, part.start, first, count))
            continue
        parents = tuple(part.parents)
        positions.extend(part.start + depth for depth in _depths(parents))
        branches = tuple(
            Branch(torch.tensor([first + row for row in path], device=device), new)
            for path, new in _branches(parents)
        )
        segments.append(Segment(part.seq, part.start, first, count, parents, branches))
    wanted = [row for part in rows for row in range(ends[part.seq] - part.logits, ends[part.seq])]
    return Batch(
        torch.tensor(tokens, dtype=torch.long, device=device),
        torch.tensor(positions, dtype=torch.long, device=device),
        torch.tensor(wanted, dtype=torch.long, device=device),
        tuple(segments),
    )


def _depths(parents: Sequence[int]) -> list[int]:
    depths: list[int] = []
    for parent in parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
    return depths


def _branches(parents: Sequence[int]) -> list[tuple[list[int], int]]:
    """(rows from a root to a leaf, how many of the last ones no earlier branch has) for every leaf."""
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
