"""Which drafts the next forward verifies, and how much of each. Pure functions: no clock, no state, no
engine.

A round commits one token for each request and every draft token that is accepted, in the time of one forward:

    rate = (requests + sum of the survival of the verified draft tokens) / cost(draft tokens)

The survival of a draft token is the probability that it and all its ancestors are accepted; it never rises
along a chain. So the best n draft tokens are the n likeliest, whichever request they belong to, and one scan
over n finds the optimum for any cost curve, steps included (SpecInfer, Miao et al. 2024, arXiv 2305.09781;
SmartSpec, Liu et al. 2024, arXiv 2406.14066, calls the rate goodput).

Costs are in plain forwards of one request; `cost[n]` is that of the next forward with n draft tokens in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import inf

from foredraft.planner.cost import Passes

MARGIN = 1.03
"""Factor by which the rate of a draft must exceed that of plain decoding."""

OVERDRAFT = 0.25
"""Plain rounds by which a draft that turns out worthless may exceed the budget of its request."""

_STEPS = 8
"""Iterations of the search for the best rate; it usually converges in two or three."""


def peak_rate(
    survival: Sequence[float], requests: int, cost: Sequence[float], recompute: Sequence[float] | None = None
) -> float:
    """The highest rate that a draft reaches alone, at any length; 0 for an empty one."""
    expected, best = float(requests), 0.0
    for n, probability in enumerate(survival, 1):
        expected += probability
        rate = expected / (cost[n] if recompute is None else cost[n] + recompute[n])
        best = max(best, rate)
    return best


def gain_of(survival: Sequence[float], cost: Sequence[float], share: float) -> tuple[float, int]:
    """(the plain rounds that a draft is expected to save at its best length, that length); `share`: of a
    request, in `cost`.
    """
    best, length, expected = 0.0, 0, 0.0
    for n, probability in enumerate(sorted(survival, reverse=True), 1):
        expected += probability
        gain = expected - (cost[n] - cost[0]) / share
        if gain > best:
            best, length = gain, n
    return best, length


def affordable(
    paying: Sequence[float],
    extra: Sequence[float],
    bound: Sequence[float],
    budget: float,
    overdraft: float = OVERDRAFT,
) -> int:
    """The most draft tokens that a budget, in plain rounds, covers.

    `paying[n - 1]` is the probability that n draft tokens bring more than they cost, `extra[n]` what they
    are expected to cost beyond a plain round, `bound[n]` the most they may cost. The expected loss must be
    within the budget, and the greatest loss exceeds it by `OVERDRAFT` at most.
    """
    for n in range(len(paying), 0, -1):
        # A probability near 1 is less certain than it looks: its fourth power counts.
        if bound[n] <= budget + overdraft and extra[n] * (1.0 - paying[n - 1] ** 4) <= budget:
            return n
    return 0


def needed(
    paying: Sequence[float], extra: Sequence[float], bound: Sequence[float], overdraft: float = OVERDRAFT
) -> float:
    """The least budget that covers any length of a draft; see `affordable`."""
    return min(
        max(bound[n] - overdraft, extra[n] * (1.0 - paying[n - 1] ** 4)) for n in range(1, len(paying) + 1)
    )


def chain_paying(survival: Sequence[float], extra: Sequence[float]) -> list[float]:
    """For 1, 2, … tokens of a chain the probability that more of them are accepted than they cost rounds."""
    paying = []
    for n in range(1, len(survival) + 1):
        needed = int(extra[n])
        paying.append(survival[needed] if needed < n else 0.0)
    return paying


def draft_lengths(
    survivals: Sequence[Sequence[float]],
    requests: int,
    cost: Sequence[float],
    recompute: Sequence[Sequence[float]] | None = None,
    *,
    margin: float = MARGIN,
) -> list[int]:
    """Draft tokens to verify for each request; all 0 where plain decoding is not beaten by `margin`.

    `survivals[r]` is that of request r's draft, cut to what its budget covers; `requests` decode in the
    forward in all. Together they have `len(cost)` - 1 tokens at most. `recompute[r][n]` is what n of its
    tokens cost in later forwards, where a model computes accepted tokens again. A tree is a list of nodes,
    best first: it is cut like a chain.
    """
    tokens = [
        (rank, probability, r)
        for r, chain in enumerate(survivals)
        for rank, probability in zip(accumulate(chain, min), chain, strict=True)
    ]
    if len(survivals) > 1:
        tokens.sort(key=lambda token: token[0], reverse=True)
    lengths = [0] * len(survivals)
    expected, later, count = float(requests), 0.0, 0
    best = margin * requests / cost[0]
    for n, (_, probability, r) in enumerate(tokens[: len(cost) - 1], 1):
        expected += probability
        lengths[r] += 1
        if recompute is not None:
            later += recompute[r][lengths[r]] - recompute[r][lengths[r] - 1]
        rate = expected / (cost[n] + later)
        if rate > best:
            best, count = rate, n
    lengths = [0] * len(survivals)
    for _, _, r in tokens[:count]:
        lengths[r] += 1
    return lengths


def lengths_in_passes(
    survivals: Sequence[Sequence[float]],
    requests: int,
    passes: Passes,
    recompute: Sequence[Sequence[float]] | None = None,
    *,
    margin: float = MARGIN,
) -> list[int]:
    """`draft_lengths` where a draft for one of several requests is a pass over the weights of its own, or all
    requests are filled up to as many rows in one pass.

    The rate is a ratio of two sums over requests. At any rate r the best length of each draft maximises
    expected tokens - r × cost, and the rate of these lengths is the next r (Dinkelbach 1967).
    """
    gains = [list(accumulate(chain, initial=0.0)) for chain in survivals]
    later = recompute or [[0.0] * len(gain) for gain in gains]
    added = [
        [passes.added[n] + more for n, more in enumerate(its[: len(gain)])]
        for its, gain in zip(later, gains, strict=True)
    ]
    best, found = margin * requests / passes.plain, [0] * len(survivals)
    for _ in range(_STEPS):
        lengths = [
            max(range(len(gain)), key=lambda n, gain=gain, cost=cost: gain[n] - best * cost[n])  # type: ignore[misc]
            for gain, cost in zip(gains, added, strict=True)
        ]
        rate = (requests + _sum(gains, lengths)) / (passes.base + passes.change + _sum(added, lengths))
        if not any(lengths) or rate <= best:
            break
        best, found = rate, lengths
    for most in range(1, max(map(len, survivals), default=0) + 1):
        if passes.even[most] == inf:
            break
        lengths = [min(len(chain), most) for chain in survivals]
        rate = (requests + _sum(gains, lengths)) / (passes.even[most] + passes.change + _sum(later, lengths))
        if rate > best:
            best, found = rate, lengths
    return found


def _sum(tables: Sequence[Sequence[float]], lengths: Sequence[int]) -> float:
    return sum(table[n] for table, n in zip(tables, lengths, strict=True))
