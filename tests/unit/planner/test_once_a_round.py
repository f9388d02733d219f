"""What the planner need not do more than once, or not at all, it does not do; and decides the same."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foredraft.planner.adaptive import AdaptivePlanner
from foredraft.planner.ratios import Ratios
from foredraft.planner.tables.beta import caution
from foredraft.protocols import RequestView
from foredraft.types import Draft, Load
from planner_rounds import Curve, chain, linear, teach

VIEW = RequestView(1, [0], prompt_length=1)
LOAD = Load(1, 0, 1)
DEAR = linear(2.0)
CHEAP = linear(0.05)

curves = st.lists(st.floats(0.0, 1.5), min_size=20, max_size=20).map(
    lambda steps: list(accumulate([1.0, *(step if step > 0.4 else 0.0 for step in steps)]))
)


def taught(curve: Curve) -> AdaptivePlanner:
    planner = AdaptivePlanner()
    teach(planner, curve)
    return planner


def counted(monkeypatch: pytest.MonkeyPatch, of: object, name: str) -> list[tuple[Any, ...]]:
    """The arguments of the calls of a method from now on."""
    calls: list[tuple[Any, ...]] = []
    method: Callable[..., Any] = getattr(of, name)

    def counting(*args: Any) -> Any:
        calls.append(args)
        return method(*args)

    monkeypatch.setattr(of, name, counting)
    return calls


@pytest.mark.parametrize("count", [1, 4])
def test_the_costs_are_looked_up_once_for_all_drafts(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    planner = taught(linear(0.02))
    looked_up = counted(monkeypatch, planner._curve, "prices")
    views = [RequestView(number, [0], prompt_length=1) for number in range(count)]
    for view in views:  # which have won something, so that drafts may be verified
        planner._stakes.settle(view.id, committed=3, cost=1.0)
    chosen = planner.choose(views, [[chain(8, "a"), chain(3, "b")]] * count, Load(count, 0, 1))
    assert any(chosen)
    assert len(looked_up) <= (1 if count == 1 else 2), "the second: for the drafts of all together"


def test_the_costs_of_a_round_are_not_those_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    planner = taught(CHEAP)
    looked_up = counted(monkeypatch, planner._curve, "prices")
    for _ in range(3):
        planner.choose([VIEW], [[chain(8)]], LOAD)
    assert len(looked_up) == 3


def test_the_stake_is_not_asked_about_drafts_that_do_not_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    planner = taught(DEAR)
    asked = counted(monkeypatch, planner._stakes, "cut")
    assert planner.choose([VIEW], [[chain(8)]], LOAD) == [None]
    assert not asked
    assert not planner.estimates[0].pays
    planner = taught(CHEAP)
    asked = counted(monkeypatch, planner._stakes, "cut")
    planner.choose([VIEW], [[chain(8)]], LOAD)
    assert asked


@given(curve=curves, confidence=st.lists(st.floats(0.05, 0.98), min_size=1, max_size=12))
@settings(deadline=None, max_examples=200)
def test_nothing_that_pays_is_missed(curve: list[float], confidence: list[float]) -> None:
    """With a stake that covers everything, what is verified is what is best, alone and beside others."""
    planner = taught(lambda rows: curve[min(rows, len(curve)) - 1])
    draft = Draft(tuple(range(len(confidence))), "s", confidence=tuple(confidence))
    for load in (LOAD, Load(1, 3, 1), Load(2, 0, 1)):
        survival = planner._survival.estimate(draft, caution(load.decoding))
        views = [RequestView(number, [0], prompt_length=1) for number in range(load.decoding)]
        for view in views:
            planner._stakes._stakes[view.id] = 1000.0
        chosen = planner.choose(views, [[draft]] * load.decoding, load)
        lengths = planner._lengths(range(load.decoding), [survival] * load.decoding, load)
        assert [len(its) if its else 0 for its in chosen] == lengths


@given(
    sizes=st.dictionaries(st.integers(2, 70), st.floats(1.0, 30.0), max_size=12),
    first=st.integers(2, 90),
)
def test_a_curve_is_the_same_in_parts_and_at_once(sizes: dict[int, float], first: int) -> None:
    parts, whole = Ratios(), Ratios()
    for ratios in (parts, whole):
        ratios.seed(sizes, 0)
    at_once = whole.span(1, 100, 0)
    assert [parts.ratio(rows, 0) for rows in (first, *range(1, 101))] == [at_once[first - 1], *at_once]
    for (low, value), (high, above) in pairwise(parts._known):
        middle = (low + high) // 2
        assert parts.ratio(middle, 0) == value + (middle - low) / (high - low) * (above - value)
