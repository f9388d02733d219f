"""What is asked of sequences of tokens in more than one place."""

from __future__ import annotations

from collections.abc import Sequence


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading tokens two sequences share."""
    shared = min(len(a), len(b))
    if list(a[:shared]) == list(b[:shared]):
        return shared
    return next(i for i in range(shared) if a[i] != b[i])


def repeated_length(
    tokens: Sequence[int], *, copies: int, least: int, longest: int, begin: int = 0
) -> int | None:
    """The length of the passage that `tokens[begin:]` ends with copies of; None if it does not end so.

    The copies are exact, at least `copies`, and together at least `least` tokens; the shortest passage of at
    most `longest` tokens is found. The last copy may be cut.
    """
    have = len(tokens) - begin
    for length in range(1, longest + 1):
        span = max(least, copies * length)
        if span > have:
            return None
        if tokens[-1] == tokens[-1 - length] and tokens[-span:-length] == tokens[length - span :]:
            return length
    return None
