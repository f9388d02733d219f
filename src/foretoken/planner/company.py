"""What is expected of a forward for so many requests together, before any was seen."""

from __future__ import annotations

from foretoken.planner.ratios import Ratios

ALIKE = 8
"""Requests beyond which numbers share a curve: up to 16, up to 32, …"""

_DRAFTED = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
"""Draft tokens of which the cost is carried over."""


def company_of(decoding: int) -> int:
    """The curve of so many requests decoding together: one for each number up to eight, then for 9 to 16 …"""
    return max(decoding - 1, 0) if decoding <= ALIKE else ALIKE // 2 + (decoding - 1).bit_length()


def in_passes(alone: Ratios, decoding: int, now: int) -> dict[int, float]:
    """V(n)/V(1) of so many requests, of which one is drafted for, in a forward that is not ragged
    (`Capabilities`): its rows are another pass over the weights, or all requests get as many.
    """
    plain = alone.ratio(decoding, now)
    return {decoding: plain} | {
        decoding + more: min(
            plain + alone.ratio(more, now), max(plain, alone.ratio(decoding * (1 + more), now))
        )
        for more in _DRAFTED
    }


def in_company(alone: Ratios, fewer: Ratios, known: int, decoding: int, now: int) -> dict[int, float]:
    """The same, from what is known of `known` requests, which are fewer: a draft adds as much as there."""
    plain, there = alone.ratio(decoding, now), fewer.ratio(known, now)
    return {decoding: plain} | {
        decoding + more: plain + fewer.ratio(known + more, now) - there for more in _DRAFTED
    }
