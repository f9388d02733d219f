"""Whether an answer repeats itself without end: its last tokens are many exact copies of one passage."""

from __future__ import annotations

from collections.abc import Sequence

LEAST_TOKENS = 768
"""What has to be copies. Fifty rows of a dozen tokens that somebody asked for are fewer."""

LEAST_COPIES = 8

LONGEST = 256
"""The longest passage that is looked for, in tokens."""

EVERY = 64
"""Tokens after which it is looked for again: then it costs 1 µs a token, whatever the answer's length."""


def repeated_length(tokens: Sequence[int], begin: int = 0) -> int | None:
    """The length of the passage that `tokens[begin:]` ends with copies of; None if it does not end so.

    The copies are exact, at least `LEAST_COPIES`, and together at least `LEAST_TOKENS`. It depends on the
    tokens alone: not on how many of them came in one round.
    """
    have = len(tokens) - begin
    for length in range(1, LONGEST + 1):
        span = max(LEAST_TOKENS, LEAST_COPIES * length)
        if span > have:
            return None
        if tokens[-1] == tokens[-1 - length] and tokens[-span:-length] == tokens[length - span :]:
            return length
    return None


def due(generated: int) -> bool:
    """Whether to look after so many tokens of an answer."""
    return generated >= LEAST_TOKENS and generated % EVERY == 0
