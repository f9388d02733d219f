"""How far each request's draft goes, against trying all that there is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, product
from math import inf

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from foredraft.planner.company import Shapes
from foredraft.planner.lengths import best_lengths, lengths_in_passes

MARGIN = 1.03
chance = st.floats(0.05, 1.0)
drafts = st.lists(
    st.lists(chance, max_size=3).map(lambda row: list(accumulate(row, min))), min_size=1, max_size=4
)
steps = st.lists(st.floats(0.01, 1.5), min_size=20, max_size=20)


def best_of_all(
    survivals: Sequence[Sequence[float]], plain: float, price: Callable[[Sequence[int]], float]
) -> float:
    """The best rate of any lengths, relative to plain decoding; 1 where none is better by the margin."""
    decoding = len(survivals)
    rates = [
        (decoding + sum(sum(chain[:n]) for chain, n in zip(survivals, lengths, strict=True))) / price(lengths)
        for lengths in product(*(range(len(chain) + 1) for chain in survivals))
        if any(lengths)
    ]
    best = max(rates, default=0.0) * plain / decoding
    return best if best > MARGIN else 1.0


def rate_of(
    survivals: Sequence[Sequence[float]],
    lengths: Sequence[int],
    plain: float,
    price: Callable[[Sequence[int]], float],
) -> float:
    if not any(lengths):
        return 1.0
    won = sum(sum(chain[:n]) for chain, n in zip(survivals, lengths, strict=True))
    return (len(survivals) + won) / price(lengths) * plain / len(survivals)


@given(drafts, steps)
def test_in_one_pass(survivals: list[list[float]], step: list[float]) -> None:
    costs = [1.0, *accumulate(step, initial=1.1)]

    def price(lengths: Sequence[int]) -> float:
        return costs[sum(lengths)]

    lengths = best_lengths(survivals, len(survivals), costs, margin=MARGIN)
    found = rate_of(survivals, lengths, costs[0], price)
    assume(abs(found - MARGIN) > 1e-6)
    assert found == pytest.approx(best_of_all(survivals, costs[0], price))


@given(drafts, steps, steps, st.floats(0.0, 0.3))
def test_in_passes(
    survivals: list[list[float]], passes: list[float], filled: list[float], change: float
) -> None:
    added, even = [0.0, *accumulate(passes)], [1.0, *accumulate(filled, initial=1.2)]
    shapes = Shapes(1.0, 1.0, change, added, even)
    lengths = lengths_in_passes(survivals, len(survivals), shapes, margin=MARGIN)
    found = rate_of(survivals, lengths, 1.0, shapes.price)
    best = best_of_all(survivals, 1.0, shapes.price)
    # Filled up, drafts of other lengths than one bound for all are not tried.
    apart = best_of_all(survivals, 1.0, Shapes(1.0, 1.0, change, added, [inf] * len(even)).price)
    assume(abs(apart - MARGIN) > 1e-6)
    assert apart - 1e-9 <= found <= best + 1e-9


def test_one_certain_draft_among_sixteen_is_not_worth_a_pass() -> None:
    shapes = Shapes(4.0, 4.0, 0.0, [0.0, 1.0, 1.1, 1.3, 1.5], [4.0, 8.0, inf, inf, inf])
    assert not any(lengths_in_passes([[1.0] * 4, *[[]] * 15], 16, shapes, margin=MARGIN))


def test_each_of_several_drafts_has_to_pay_for_its_own_pass() -> None:
    """Four tokens for 1.5 are worth more than two of eight for 2; one for 1 is not."""
    shapes = Shapes(2.0, 2.0, 0.0, [0.0, 1.0, 1.2, 1.4, 0.8], [2.0, 5.0, inf, inf, inf])
    survivals = [[0.9] * 4, [0.5], [], [1.0, 0.9, 0.9, 0.9], [], [0.9], [], []]
    assert lengths_in_passes(survivals, 8, shapes, margin=MARGIN) == [4, 0, 0, 4, 0, 0, 0, 0]


def test_all_filled_up_in_one_pass() -> None:
    shapes = Shapes(1.4, 1.4, 0.0, [0.0, 1.0, 1.1, 1.2], [1.4, 2.2, 2.7, 3.2])
    survivals = [[0.95, 0.9, 0.8]] * 3 + [[0.95]]
    assert lengths_in_passes(survivals, 4, shapes, margin=MARGIN) == [3, 3, 3, 1]


def test_what_is_owed_later_counts() -> None:
    shapes = Shapes(1.0, 1.0, 0.0, [0.0, 0.3], [1.0, inf])
    assert lengths_in_passes([[0.9]], 1, shapes, margin=MARGIN) == [1]
    assert lengths_in_passes([[0.9]], 1, shapes, [[0.0, 0.8]], margin=MARGIN) == [0]
