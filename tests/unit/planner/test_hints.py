"""Asking where it may pay: after matches that are long enough for the curve, the stake and the price."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import pytest

from foredraft.bench.trace import Trace
from foredraft.drafters.suffix import SuffixDrafter
from foredraft.engine.engine import Engine
from foredraft.planner.adaptive import AdaptivePlanner
from foredraft.planner.attention import DEAR, START
from foredraft.planner.cost import CostCurve
from foredraft.planner.hints import GROWN, SURVIVAL, Hints
from foredraft.planner.income import INCOME
from foredraft.planner.stake import Stakes
from foredraft.planner.tables.lexical import Lexical
from foredraft.protocols import RequestView
from foredraft.types import Draft, DraftLimit, Load
from planner_rounds import linear, teach
from virtual_time import CountingModel, ask, curve, noise, trace_set

COST = 0.08
LONGEST = 64
SHARE = 0.045


def known(slope: float) -> CostCurve:
    costs = CostCurve()
    for rows in (1, *(size for most in range(2, 65) for size in (1, most))):
        costs.tick()
        costs.add(rows, 10.0 * linear(slope)(rows))
    return costs


def promising(hints: Hints, requests: Sequence[RequestView]) -> set[int]:
    """Whom the planner would ask on credit, of those who have any."""
    request = hints.likely(requests)
    return {request.id} if request is not None and hints.promising(request) else set()


def shortest(
    slope: float, *, cost: float = COST, decoding: int = 1, won: int = 1000, lexical: Lexical | None = None
) -> int:
    """The shortest match that is promising; LONGEST if none is."""
    stakes = Stakes()
    stakes.settle(1, committed=won, cost=1.0)
    hints = Hints(known(slope), stakes, lexical or Lexical())
    hints.weigh(cost, decoding)
    passage = list(range(100, 200))
    for length in range(2, LONGEST):
        view = RequestView(1, [*passage, 1, *passage[:length]])
        if promising(hints, [view]):
            return length
        hints.forget(1)
    return LONGEST


def test_the_dearer_a_row_the_longer_the_match() -> None:
    found = [shortest(slope) for slope in (0.05, 0.45, 0.75, 0.9)]
    assert found == sorted(set(found)), found
    assert shortest(1.1) == LONGEST, "where no draft pays no match is long enough"


def test_the_dearer_the_question_the_longer_the_match() -> None:
    assert shortest(0.75, cost=1.5) > shortest(0.75, cost=0.02)


def test_rows_cost_more_in_company() -> None:
    """Eight requests share what one forward costs: a token is worth what it takes each of them."""
    assert shortest(0.45, decoding=8) > 2 * shortest(0.45)
    assert shortest(0.05, decoding=8) > shortest(0.05)


def test_it_matters_which_token_is_expected() -> None:
    """Of a match that says 0.6 or 0.75, tokens that were mostly wrong need more and others less."""

    def known_as(right: bool) -> Lexical:
        lexical = Lexical()
        for at in range(101, 199):  # the passage's tokens, each after the one before it and before the next
            for _ in range(8):
                lexical.add(at - 1, at, at + 1, 2, 0, error=0.4 if right else -0.6)
        return lexical

    assert (
        shortest(0.6, lexical=known_as(right=True))
        < shortest(0.6)
        < shortest(0.6, lexical=known_as(right=False))
    )


def test_a_request_that_may_not_lose_anything_is_not_promising() -> None:
    assert shortest(0.45, won=0) > shortest(0.45)


def test_requests_are_looked_at_in_turns() -> None:
    """Each comes round, whoever is beside it."""
    stakes = Stakes()
    passage = list(range(100, 140))
    views = [RequestView(i, [*passage, 1, *passage]) for i in range(5)]
    for view in views:
        stakes.settle(view.id, committed=1000, cost=1.0)
    hints = Hints(known(0.05), stakes, Lexical())
    hints.weigh(COST, 5)
    seen = [promising(hints, views) for _ in views]
    assert sorted(seen, key=min) == [{view.id} for view in views]


@pytest.mark.parametrize("dear", [False, True])
def test_where_questions_are_dear_every_other_round_is_looked_at(dear: bool) -> None:
    stakes = Stakes()
    stakes.settle(1, committed=1000, cost=1.0)
    hints, passage = Hints(known(0.05), stakes, Lexical()), list(range(100, 200))
    hints.weigh(COST, 1, dear=dear)
    view, likely, lengths = RequestView(1, [*passage, 1]), [], []
    for token in passage[:40]:
        view.tokens.append(token)
        likely.append(hints.likely([view]) is not None)
        lengths.append(hints._echo.noted(1)[1])
    if dear:
        assert likely[10:] in ([True, False] * 15, [False, True] * 15)
        assert lengths[-1] in {39, 40}, "what came meanwhile was read"
    else:
        assert all(likely[10:])
        assert lengths[-1] == 40


@pytest.mark.parametrize(("price", "looks"), [(DEAR - 0.01, 20), (DEAR + 0.01, 10)])
def test_the_planner_says_what_is_dear(price: float, looks: int) -> None:
    planner, view = AdaptivePlanner(), RequestView(1, list(range(100, 140)), prompt_length=40)
    planner.recall({}, {}, asking={"suffix": price}, choosing_ms=0.0)
    teach(planner, linear(0.3))
    planner.start(view, ["suffix"])
    looked = []
    for token in range(20):
        view.tokens.append(token)
        planner.rests([view], Load(1, 0, len(view.tokens)))
        looked.append(planner._hints._echo.noted(1)[0] == len(view.tokens))
    assert sum(looked) == looks


def test_nobody_needs_a_hint_where_asking_costs_nothing() -> None:
    stakes = Stakes()
    stakes.settle(1, committed=100, cost=1.0)
    hints, view = Hints(known(0.1), stakes, Lexical()), RequestView(1, [*range(50), *range(20)])
    assert not promising(hints, [view]), "nothing was weighed yet"
    hints.weigh(COST, 1)
    assert promising(hints, [view, RequestView(2, [5, 6])]) == {1}
    hints.rest()
    assert not promising(hints, [view])


def test_a_match_that_brought_nothing_must_grow_first() -> None:
    stakes = Stakes()
    stakes.settle(1, committed=1000, cost=1.0)
    hints = Hints(known(0.45), stakes, Lexical())
    hints.weigh(COST, 1)
    passage = list(range(100, 200))
    view = RequestView(1, [*passage, 1])
    told = []
    for length, token in enumerate(passage[:60], 1):
        view.tokens.append(token)
        if promising(hints, [view]):
            told.append(length)
    assert all(longer >= int(GROWN * shorter) for shorter, longer in pairwise(told))
    assert len(told) > 3
    view.tokens.append(passage[60])
    assert not promising(hints, [view])
    hints.drafted(1)
    assert promising(hints, [view]), "one that brought a draft goes on"
    view.tokens += [7, *passage[:10]]
    assert promising(hints, [view]), "and another match is another one"


def test_longer_matches_promise_more() -> None:
    for shorter, longer in pairwise(SURVIVAL):
        assert all(a <= b for a, b in zip(shorter, longer, strict=True))
    assert all(0.0 <= survival < 1.0 for survivals in SURVIVAL for survival in survivals)


class DearSuffix(SuffixDrafter):
    """Takes a share of a plain round for every request that it is asked for."""

    def __init__(self, model: CountingModel, ms: float) -> None:
        super().__init__()
        self._model, self._ms = model, ms
        self.asked = 0

    def draft(self, requests: Sequence[tuple[RequestView, DraftLimit]]) -> list[Draft | None]:
        self.asked += len(requests)
        self._model.seconds += len(requests) * self._ms / 1e3
        return super().draft(requests)


def answered(trace: Trace, name: str) -> tuple[CountingModel, DearSuffix]:
    """A trace as the first answer of a process, where asking takes `SHARE` of a plain round."""
    model = CountingModel(trace_set([trace]), curve(name))
    drafter = DearSuffix(model, SHARE * curve(name).v1_ms)
    planner = AdaptivePlanner()
    teach(planner, curve(name).ratio)
    with Engine(model, drafters=[drafter], planner=planner, clock=model.clock) as engine:
        engine.run([ask(engine, trace)])
    return model, drafter


def test_a_prompt_is_read_before_its_answer_begins() -> None:
    hints = Hints(known(0.4), Stakes(), Lexical())
    view = RequestView(1, [1, 2, 3, 4, 5, 1, 2])
    hints.start(view)
    assert hints._echo.noted(1) == (0, 0), "nobody needs a hint"
    hints.weigh(COST, 1)
    hints.start(view)
    assert hints._echo.noted(1)[0] == 7
    hints.forget(1)
    assert hints._echo.noted(1) == (0, 0)


def test_the_stake_grows_with_rounds_of_a_rest_that_it_was_not_told_of() -> None:
    stakes = Stakes()
    hints = Hints(known(0.4), stakes, Lexical())
    hints.weigh(COST, 1)
    passage = list(range(100, 200))
    view = RequestView(1, [*passage, 1, *passage[:6]])
    stakes.settle(1, committed=0, cost=0.5)
    assert hints.likely([view]) is view
    assert not hints.promising(view)
    assert not hints.promising(view, 10)
    assert hints.promising(view, 60)


@pytest.mark.parametrize("name", ["steep", "cpu-q4_0"])
def test_the_first_copy_of_a_process_is_soon_drafted(name: str) -> None:
    rng = random.Random(3)
    prompt = noise(150, rng)
    model, _ = answered(Trace("copy", "copy", prompt, (*noise(8, rng), *prompt[20:100])), name)
    first = next(i for i, rows in enumerate(model.sizes) if rows > 1)
    assert first < 8 + 16
    assert model.seconds < 0.75 * 88 * curve(name).v1_ms / 1e3


def test_text_that_nothing_promises_is_asked_about_seldom() -> None:
    rng = random.Random(4)
    model, drafter = answered(Trace("noise", "noise", noise(150, rng), noise(400, rng)), "steep")
    assert drafter.asked <= 0.5 * (START + INCOME * 400) / SHARE, "half of the credit is saved"
    assert model.seconds < 400 * curve("steep").v1_ms / 1e3 / 0.985


def test_what_was_told_among_many_is_told_again_when_they_are_fewer() -> None:
    stakes = Stakes()
    stakes.settle(1, committed=1000, cost=1.0)
    hints = Hints(known(0.45), stakes, Lexical())
    view = RequestView(1, [*range(100, 140), 1, *range(100, 130)])
    hints.weigh(COST, 2)
    assert promising(hints, [view])
    view.tokens.append(130)
    hints.weigh(COST, 3)
    assert not promising(hints, [view]), "nothing new, and more company"
    view.tokens.append(131)
    hints.weigh(COST, 1)
    assert promising(hints, [view])
