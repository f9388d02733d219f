"""What is asked of sequences of tokens in more than one place."""

from __future__ import annotations

from collections.abc import Sequence


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading tokens two sequences share."""
    shared = min(len(a), len(b))
    if list(a[:shared]) == list(b[:shared]):
        return shared
    return next(i for i in range(shared) if a[i] != b[i])


def looping_tail(tokens: Sequence[int], *, copies: int = 2, least: int = 64) -> int:
    """How many tokens at the end are exact copies of one period, of any length: the most there are.

    0 where they are fewer than `copies` periods or fewer than `least` tokens. Takes linear time: whoever asks
    again and again hands in the last few thousand tokens only.
    """
    backwards = tokens[::-1]
    # Z-function: how far the sequence agrees with itself `period` tokens on (Gusfield 1997, section 1.4).
    agreeing = [0] * len(backwards)
    left = right = longest = 0
    for period in range(1, len(backwards)):
        length = min(right - period, agreeing[period - left]) if period < right else 0
        while period + length < len(backwards) and backwards[length] == backwards[period + length]:
            length += 1
        agreeing[period] = length
        if period + length > right:
            left, right = period, period + length
        if period + length >= max(copies * period, least):
            longest = max(longest, period + length)
    return longest
