"""When to compute owed tokens again: the rule in use, against the other obvious ones, in a small cost model.

A forward of n rows takes 1 + slope · (n - 1) plain forwards, a copy of the state and putting it back SAVING
and RESTORING. Every draft token is right with one chance. A rule says what becomes of the rows that are owed;
each gets the draft length that suits it best. The rows owed are a Markov chain, and its long-run tokens per
time the rule's rate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import pytest

from foredraft.engine.round import MAX_RECOMPUTED
from matrix import nightly

SAVING, RESTORING = 0.05, 0.04
MOST = 90
LONGEST = 16

SLOPES = (0.02, 0.1, 0.25, 0.5)
"""From a GPU's to a small CPU's."""
CHANCES = (0.5, 0.7, 0.85, 0.95)


class Rule(NamedTuple):
    """`drafts(owed)`: whether a draft is verified while so many rows are owed. `at_once`: a rejection has a
    forward of its own, which computes what was kept. `before`: a draft has one, which computes what is owed.
    """

    drafts: Callable[[int], bool]
    at_once: bool = False
    before: bool = False


IN_USE = Rule(lambda owed: owed <= MAX_RECOMPUTED)
OTHERS = {
    "at once, in a forward of its own": Rule(lambda _: True, at_once=True),
    "in a forward of its own before the next draft": Rule(lambda _: True, before=True),
    "a plain round after every rejection": Rule(lambda owed: owed == 0),
    "with the next forward, however many they are": Rule(lambda _: True),
}


class End(NamedTuple):
    """A way a round can end."""

    chance: float
    tokens: int
    cost: float
    owed: int


def ends(rule: Rule, owed: int, length: int, slope: float, right: float) -> Iterator[End]:
    def forward(rows: int) -> float:
        return 1.0 + slope * (rows - 1)

    if length == 0 or not rule.drafts(owed):
        yield End(1.0, 1, forward(owed + 1), 0)
        return
    cost = 0.0
    if rule.before and owed:
        cost, owed = forward(owed), 0
    cost += forward(owed + 1 + length) + (0.0 if owed else SAVING)
    for accepted in range(length):
        kept = owed + accepted + 1
        again = RESTORING + (forward(kept) if rule.at_once else 0.0)
        yield End(right**accepted * (1 - right), accepted + 1, cost + again, 0 if rule.at_once else kept)
    yield End(right**length, length + 1, cost, 0)


def rate(rule: Rule, length: int, slope: float, right: float) -> float:
    """Tokens per plain forward's time, in the long run."""
    moves, tokens, cost = np.zeros((MOST + 1, MOST + 1)), np.zeros(MOST + 1), np.zeros(MOST + 1)
    for owed in range(MOST + 1):
        for end in ends(rule, owed, length, slope, right):
            moves[owed, min(end.owed, MOST)] += end.chance
            tokens[owed] += end.chance * end.tokens
            cost[owed] += end.chance * end.cost
    system = np.vstack([moves.T - np.eye(MOST + 1), np.ones(MOST + 1)])
    shares = np.linalg.lstsq(system, np.append(np.zeros(MOST + 1), 1.0), rcond=None)[0]
    return float(shares @ tokens / (shares @ cost))


def best_rate(rule: Rule, slope: float, right: float) -> float:
    return max(rate(rule, length, slope, right) for length in (0, 1, 2, 3, 4, 5, 7, 9, 12, LONGEST))


@pytest.mark.parametrize("slope", [SLOPES[0], *(pytest.param(slope, marks=nightly) for slope in SLOPES[1:])])
def test_no_obvious_rule_is_faster_by_more_than_three_percent(slope: float) -> None:
    for right in CHANCES:
        ours = best_rate(IN_USE, slope, right)
        rates = {name: best_rate(rule, slope, right) for name, rule in OTHERS.items()}
        assert ours > 0.97 * max(rates.values()), (right, ours, rates)
        assert ours >= rates["at once, in a forward of its own"]
        assert ours >= rates["in a forward of its own before the next draft"]


def test_a_forward_of_its_own_is_much_slower_where_rows_are_cheap() -> None:
    ours = best_rate(IN_USE, 0.02, 0.7)
    assert ours > 1.5 * best_rate(OTHERS["at once, in a forward of its own"], 0.02, 0.7)
    assert ours > 1.15 * best_rate(OTHERS["a plain round after every rejection"], 0.02, 0.7)
