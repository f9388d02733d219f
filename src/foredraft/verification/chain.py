"""Verification of a draft chain by the target's own choices (docs/how-it-works.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from foredraft.types import Verdict


def verify_chain(tokens: Sequence[int], choose: Callable[[int], int]) -> Verdict:
    """Accept draft tokens as long as they equal the target's own choices.

    `choose(row)` returns the target's own token at a row: row 0 follows the last committed token, row i + 1
    follows draft token i. It is called once per row, in order, and never past the first mismatch, so every
    token it returns is committed and it may advance the caller's state. An empty draft is plain decoding.
    Lossless for any draft, because no committed token depends on it.
    """
    committed: list[int] = []
    for row, token in enumerate(tokens):
        own = choose(row)
        committed.append(own)
        if own != token:
            return Verdict(tuple(committed), tuple(range(row)))
    committed.append(choose(len(tokens)))
    return Verdict(tuple(committed), tuple(range(len(tokens))))
