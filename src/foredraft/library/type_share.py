"""The types of a model's tensors, and their shares of its size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TypeShare:
    """The share of a model that is stored in one tensor type."""

    tensors: int
    size_bytes: int


def type_shares(tensors: Iterable[tuple[str, int]]) -> dict[str, TypeShare]:
    """The share of each type, largest first; `tensors` are (type, bytes)."""
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for kind, size in tensors:
        counts[kind] += 1
        sizes[kind] += size
    return {kind: TypeShare(counts[kind], size) for kind, size in sizes.most_common()}
