"""Rejection sampling of a sampled draft chain, token by token.

Leviathan, Kalman and Matias (ICML 2023, arXiv 2211.17192, algorithm 1) and Chen et al. (2023, arXiv
2302.01318, theorem 1). With q the draft's distribution at a position and p the target's, both given the
same prefix: accept x with probability min(1, p(x) ÷ q(x)); at the first rejection draw from max(p − q, 0)
normalised; after a fully accepted draft draw from p.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from foredraft.types import Probs, Verdict

Target: TypeAlias = Callable[[int], Probs]
"""target(row): the target's distribution after the draft's first `row` tokens, shape (vocabulary,)."""
Uniform: TypeAlias = Callable[[int], float]
"""uniform(i): a number in (0, 1) for testing draft token i."""
Pick: TypeAlias = Callable[[int, Probs], int]
"""pick(i, weights): the i-th committed token, drawn from weights that need not be normalised."""


def verify_rejection(
    tokens: Sequence[int],
    probs: Sequence[Probs] | None,
    target: Target,
    uniform: Uniform,
    pick: Pick,
) -> Verdict:
    """Committed tokens follow the target's distribution exactly, if the tokens were drawn from `probs`.

    `target` is called for rows in order, none twice, and never past the first rejection. `probs` None: the
    draft was not sampled, so each q is one at its token.

    The draft must not have been truncated because of a dropped token's probability: that biases the output.
    """
    for index, token in enumerate(tokens):
        own = target(index)
        drawn = 1.0 if probs is None else float(probs[index][token])
        if uniform(index) * drawn >= float(own[token]):
            last = pick(index, residual(own, token, None if probs is None else probs[index]))
            return Verdict((*tokens[:index], last), tuple(range(index)))
    return Verdict((*tokens, pick(len(tokens), target(len(tokens)))), tuple(range(len(tokens))))


def surplus(own: Probs, token: int, drawn: Probs | None, scale: float = 1.0) -> Probs:
    """max(scale · p − q, 0), shape (vocabulary,), not normalised; q is `drawn`, or one-hot at `token`."""
    left: Probs = scale * own
    if drawn is None:
        left[token] -= 1.0
    else:
        left -= drawn
    return np.maximum(left, 0.0, out=left)


def residual(own: Probs, token: int, drawn: Probs | None) -> Probs:
    """The surplus, or p itself if p and q agree and the rejection was only a rounding error."""
    left = surplus(own, token, drawn)
    return left if left.any() else own
