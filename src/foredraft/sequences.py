"""Functions on token sequences that several packages use."""

from __future__ import annotations

from collections.abc import Sequence

_BLOCK = 1024
"""Tokens compared at once: what follows the first difference is hardly read."""


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """The number of leading tokens two sequences share."""
    shared = min(len(a), len(b))
    for begin in range(0, shared, _BLOCK):
        one, other = a[begin : begin + _BLOCK], b[begin : begin + _BLOCK]
        if list(one) != list(other):
            pairs = enumerate(zip(one, other, strict=False))
            differs = next((place for place, (x, y) in pairs if x != y), None)
            if differs is not None:
                return begin + differs
    return shared


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
