"""Functions on token sequences that several packages use."""

from __future__ import annotations

from collections.abc import Sequence


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """The number of leading tokens two sequences share."""
    shared = min(len(a), len(b))
    if list(a[:shared]) == list(b[:shared]):
        return shared
    return next(i for i in range(shared) if a[i] != b[i])


def repeated_length(
    tokens: Sequence[int], *, copies: int, least: int, longest: int, begin: int = 0
) -> int | None:
    """The length of the passage that is repeated at the end of `tokens[begin:]`; None if there is none.

    At least `copies` exact copies with at least `least` tokens in total are needed; the last copy may be
    incomplete. Returns the shortest such passage of at most `longest` tokens.
    """
    have = len(tokens) - begin
    for length in range(1, longest + 1):
        span = max(least, copies * length)
        if span > have:
            return None
        if tokens[-1] == tokens[-1 - length] and tokens[-span:-length] == tokens[length - span :]:
            return length
    return None
