"""How far each request's draft goes in the one forward that all requests share."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import inf

import numpy as np
import numpy.typing as npt

from foredraft.planner.company import Shapes

Floats = npt.NDArray[np.float64]

_STEPS = 8
"""Of the search for the best rate; it converges faster than it is bounded."""


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


def lengths_in_passes(
    survivals: Sequence[Sequence[float]],
    decoding: int,
    shapes: Shapes,
    later: Sequence[Sequence[float]] = (),
    *,
    margin: float,
) -> list[int]:
    """The same where drafts are passes of their own (`company`): each for itself, or all requests filled up
    to as many rows.

    The rate is a ratio of two sums over requests, so with any rate r the draft of each is as long as makes
    (expected tokens - r × cost) largest, and the rate of those lengths is the next r: Dinkelbach (1967).
    """
    drafted = [i for i, chain in enumerate(survivals) if chain]
    lengths = [0] * len(survivals)
    if not drafted:
        return lengths
    longest = max(len(survivals[i]) for i in drafted)
    added = np.array(shapes.added)
    gains = [np.concatenate(([0.0], np.cumsum(survivals[i]))) for i in drafted]
    owed = [
        np.array(later[i]) if later else np.zeros(len(gain)) for i, gain in zip(drafted, gains, strict=True)
    ]
    costs = [added[: len(gain)] + more for gain, more in zip(gains, owed, strict=True)]
    best, found = margin * decoding / shapes.plain, [0] * len(drafted)
    for _ in range(_STEPS):
        chosen = [int((gain - best * cost).argmax()) for gain, cost in zip(gains, costs, strict=True)]
        rate = (decoding + _sum(gains, chosen)) / (shapes.base + shapes.change + _sum(costs, chosen))
        if not any(chosen) or rate <= best:
            break
        best, found = rate, chosen
    for most in range(1, longest + 1):
        if shapes.even[most] == inf:
            break
        chosen = [min(len(gain) - 1, most) for gain in gains]
        rate = (decoding + _sum(gains, chosen)) / (shapes.even[most] + shapes.change + _sum(owed, chosen))
        if rate > best:
            best, found = rate, chosen
    for i, length in zip(drafted, found, strict=True):
        lengths[i] = length
    return lengths


def _sum(tables: Sequence[Floats], chosen: Sequence[int]) -> float:
    return float(sum(table[length] for table, length in zip(tables, chosen, strict=True)))
