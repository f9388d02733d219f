"""Decisions against all that could have been decided."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import accumulate, product
from operator import mul

import pytest

from foredraft.planner.cost import Passes
from foredraft.planner.decide import (
    MARGIN,
    OVERDRAFT,
    affordable,
    chain_paying,
    draft_lengths,
    lengths_in_passes,
    needed,
    peak_rate,
)


def survival(rng: random.Random, most: int = 4) -> list[float]:
    return list(accumulate((rng.uniform(0.2, 1.0) for _ in range(rng.randint(0, most))), mul))


def random_costs(rng: random.Random, count: int) -> list[float]:
    """Of 0 to `count` draft tokens, with steps."""
    return list(accumulate([1.0] + [rng.choice([0.0, 0.05, 0.4, 1.0]) for _ in range(count)]))


@pytest.mark.parametrize("seed", range(20))
def test_lengths_are_the_best_there_are(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(50):
        chains = [survival(rng) for _ in range(rng.randint(1, 3))]
        costs = random_costs(rng, sum(map(len, chains)))
        later = [list(accumulate([0.0] + [rng.choice([0.0, 0.1])] * len(chain))) for chain in chains]

        def rate(
            lengths: Sequence[int],
            chains: Sequence[Sequence[float]] = chains,
            costs: Sequence[float] = costs,
        ) -> float:
            return (len(chains) + sum(sum(its[:n]) for its, n in zip(chains, lengths, strict=True))) / costs[
                sum(lengths)
            ]

        best = max(map(rate, product(*(range(len(chain) + 1) for chain in chains))))
        found = draft_lengths(chains, len(chains), costs)
        if best <= MARGIN * len(chains) / costs[0]:
            assert not any(found), "plain decoding unless it is beaten by the margin"
        else:
            assert rate(found) == pytest.approx(best)
        if len(chains) == 1:
            with_later = draft_lengths(chains, 1, costs, later)
            alone = max(
                (sum(chains[0][:n]) + 1) / (costs[n] + later[0][n]) for n in range(len(chains[0]) + 1)
            )
            if any(with_later):
                n = with_later[0]
                assert (sum(chains[0][:n]) + 1) / (costs[n] + later[0][n]) == pytest.approx(alone)


@pytest.mark.parametrize("seed", range(10))
def test_lengths_in_passes_are_the_best_there_are(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(20):
        chains = [survival(rng, 3) for _ in range(3)]
        added = random_costs(rng, 3)
        added[0] = 0.0
        even = list(accumulate([1.3] + [rng.choice([0.2, 1.0]) for _ in range(3)]))
        passes = Passes(base=1.3, plain=1.3, change=0.1, added=added, even=even)

        def rate(
            lengths: Sequence[int], chains: Sequence[Sequence[float]] = chains, passes: Passes = passes
        ) -> float:
            gained = sum(sum(its[:n]) for its, n in zip(chains, lengths, strict=True))
            return (3 + gained) / passes.cost(lengths)

        best = max(map(rate, product(*(range(len(chain) + 1) for chain in chains))))
        found = lengths_in_passes(chains, 3, passes, margin=MARGIN)
        if any(found):
            assert rate(found) == pytest.approx(best)
        else:
            assert best <= MARGIN * 3 / passes.plain + 1e-9


def test_no_draft_where_rows_cost_as_much_as_tokens() -> None:
    assert draft_lengths([[0.9, 0.8]], 1, [1.0, 2.0, 3.0]) == [0]


def test_no_more_tokens_than_there_are_costs_of() -> None:
    assert draft_lengths([[0.9, 0.8], [0.9, 0.8]], 2, [1.0, 1.0, 1.0]) == [1, 1]


def test_a_step_that_pays_behind_one_that_does_not_is_found() -> None:
    assert draft_lengths([[0.9] * 8], 1, [1.0, *[1.95] * 8]) == [8]
    assert peak_rate([0.9] * 8, 1, [1.0, *[1.95] * 8]) == pytest.approx(8.2 / 1.95)


def test_a_larger_budget_never_covers_fewer_tokens() -> None:
    rng = random.Random(2)
    for _ in range(300):
        chain = survival(rng)
        extra = list(accumulate([0.0] + [rng.uniform(0.0, 0.5) for _ in chain]))
        paying, budget = chain_paying(chain, extra), rng.uniform(0.0, 2.0)
        covered = [affordable(paying, extra, extra, budget + more) for more in (0.0, 0.5, 1.0)]
        assert covered == sorted(covered)
        for n in covered[:1]:
            assert n == 0 or extra[n] <= budget + OVERDRAFT, "whatever becomes of the draft"


def test_what_is_needed_is_the_least_that_covers_anything() -> None:
    paying, extra = [0.8, 0.6], [0.0, 0.5, 0.7]
    least = needed(paying, extra, extra)
    assert affordable(paying, extra, extra, least)
    assert not affordable(paying, extra, extra, least - 0.01)


def test_a_chain_pays_if_more_is_accepted_than_it_costs() -> None:
    assert chain_paying([0.9, 0.7, 0.4], [0.0, 0.5, 1.2, 2.5]) == [0.9, 0.7, 0.4]
    assert chain_paying([0.9], [0.0, 1.5]) == [0.0], "one token never brings more than one round"
