"""What is asked of sequences of tokens in more than one place."""

from __future__ import annotations

from collections.abc import Sequence


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading tokens two sequences share."""
    shared = min(len(a), len(b))
    if list(a[:shared]) == list(b[:shared]):
        return shared
    return next(i for i in range(shared) if a[i] != b[i])
