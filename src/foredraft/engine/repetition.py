"""Whether an answer repeats itself without end: its last tokens are many exact copies of one passage."""

from __future__ import annotations

from collections.abc import Sequence

from foredraft import sequences

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
    return sequences.repeated_length(
        tokens, copies=LEAST_COPIES, least=LEAST_TOKENS, longest=LONGEST, begin=begin
    )


def due(generated: int) -> bool:
    """Whether to look after so many tokens of an answer."""
    return generated >= LEAST_TOKENS and generated % EVERY == 0
