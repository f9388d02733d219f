"""How far each request's draft goes in the one forward that all requests share."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate


def best_lengths(
    survivals: Sequence[Sequence[float]],
    decoding: int,
    costs: Sequence[float],
    later: Sequence[Sequence[float]] = (),
    *,
    margin: float,
) -> list[int]:
    """Draft lengths that maximise the rate of the forward; all 0 where plain decoding is not beaten by
    `margin`. `costs[n]`: V with n draft tokens in all, in V(1); `later[i][n]`: what n tokens of draft i cost
    afterwards (`replay`).

    Every draft token adds its survival to the expected tokens and a row to the cost, whichever request it
    belongs to; survival falls along a chain. So the best set of any size is the tokens of highest survival,
    and one scan over all sizes finds the best one, whatever the shape of V(n). A tree is cut like a chain, in
    the order its drafter chose: a token ranks no higher than those before it.
    """
    ranked = [
        (rank, survival, i)
        for i, chain in enumerate(survivals)
        for rank, survival in zip(accumulate(chain, min), chain, strict=True)
    ]
    if len(survivals) > 1:
        ranked.sort(key=lambda token: token[0], reverse=True)
    lengths = [0] * len(survivals)
    if not ranked:
        return lengths
    expected, owed, count = float(decoding), 0.0, 0
    best = margin * decoding / costs[0]
    for size, (_, survival, i) in enumerate(ranked, 1):
        expected += survival
        lengths[i] += 1
        owed += later[i][lengths[i]] - later[i][lengths[i] - 1] if later else 0.0
        rate = expected / (costs[size] + owed)
        if rate > best:
            best, count = rate, size
    lengths = [0] * len(survivals)
    for _, _, i in ranked[:count]:
        lengths[i] += 1
    return lengths
