"""Block verification of a sampled draft chain: the draft is accepted or rejected as a whole.

Sun et al., "Block Verification Accelerates Speculative Decoding" (ICLR 2025, arXiv 2403.10444, algorithm 2).
As exact as token-by-token rejection sampling, and never fewer tokens accepted in expectation: later tokens
can compensate for an unlikely one.
"""

from __future__ import annotations

from collections.abc import Sequence

from foredraft.types import Probs, Verdict
from foredraft.verification.rejection import Pick, Target, Uniform, residual, surplus


def verify_block(
    tokens: Sequence[int],
    probs: Sequence[Probs] | None,
    target: Target,
    uniform: Uniform,
    pick: Pick,
) -> Verdict:
    """Committed tokens follow the target's distribution exactly, if the tokens were drawn from `probs`.

    Arguments as in `verify_rejection`, but `target` and `uniform` are called for the whole draft (unless
    the target rules out a token), because all of it takes part in the decision. With Mb the target, Ms the
    draft model and p₀ = 1, pᵢ = min(pᵢ₋₁ · Mb(xᵢ) ÷ Ms(xᵢ), 1) is the probability that the first i tokens
    are accepted. The longest i whose uniform number is below hᵢ is accepted, hᵢ = Sᵢ ÷ (Sᵢ + 1 − pᵢ) and
    h_γ = p_γ, where Sᵢ = Σₓ max(pᵢ · Mb(x) − Ms(x), 0) given the first i tokens. The next token is drawn
    from those surplus weights at the accepted length, or from Mb after a fully accepted draft.
    """
    accepted, reach = 0, 1.0
    weights = row = target(0)
    for index, token in enumerate(tokens):
        drawn = None if probs is None else probs[index]
        if index == 0:
            weights = residual(row, token, drawn)
        q = 1.0 if drawn is None else float(drawn[token])
        reach = min(reach * float(row[token]) / q, 1.0) if q > 0.0 else 0.0
        if reach == 0.0:
            break  # nothing longer can be accepted
        row = target(index + 1)
        length = index + 1
        if length == len(tokens):
            chance, left = reach, row
        else:
            left = surplus(row, tokens[length], None if probs is None else probs[length], reach)
            total = float(left.sum())
            chance = total / (total + 1.0 - reach) if total > 0.0 else 0.0
        if uniform(index) < chance:
            accepted, weights = length, left
    return Verdict((*tokens[:accepted], pick(accepted, weights)), tuple(range(accepted)))
