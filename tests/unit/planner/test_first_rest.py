"""An answer that begins alone rests from its first token on, until it can pay for a question; what that costs
holds until the next question, but not for longer than hints do.
"""

from __future__ import annotations

import pytest

from foredraft.planner.adaptive import AdaptivePlanner
from foredraft.planner.hints import FRESH
from foredraft.protocols import RequestView
from foredraft.types import Load, Outcome, Round
from planner_rounds import PLAIN_MS, linear, teach

CPU = linear(0.4)
ASKING_MS, CHOOSING_MS = 0.05 * PLAIN_MS, 0.2 * PLAIN_MS
"""Together more than the credit of a request that has just begun."""


def ready() -> AdaptivePlanner:
    """A planner that knows what the drafter "s" takes."""
    planner = AdaptivePlanner()
    teach(planner, CPU)
    request = RequestView(100, [5, 6], prompt_length=2)
    planner.start(request)
    for _ in range(100):
        limits = planner.limits([request], ["s"], Load(1, 0, 2)).get("s", [None])
        spent = {"s": ASKING_MS} if limits[0] else {}
        request.tokens.append(7)
        outcome = Outcome(len(request.tokens) - 1, (7,))
        plan_ms = CHOOSING_MS if spent else 0.0
        planner.observe(Round(Load(1, 0, 2), 1, spent, PLAIN_MS, 0.0, ((100, outcome),), plan_ms))
    planner.stop(request)
    return planner


def view(number: int) -> RequestView:
    return RequestView(number, [1, 2, 3], prompt_length=3)


def test_it_rests_in_its_first_rounds_and_asks_when_it_can_pay() -> None:
    planner, request = ready(), view(1)
    planner.start(request, ["s"])
    rounds: list[str] = []
    while "asks" not in rounds and len(rounds) < 100:
        load = Load(1, 0, len(request.tokens))
        if planner.rests([request], load):
            rounds.append("rests")
        else:
            rounds.append("asks" if planner.limits([request], ["s"], load) else "cannot")
        request.tokens.append(10 + len(rounds))
        outcome = Outcome(len(request.tokens) - 1, tuple(request.tokens[-1:]))
        planner.observe(Round(load, 1, {}, PLAIN_MS, 0.0, ((1, outcome),)))
    assert rounds[0] == "rests"
    assert rounds[-1] == "asks"
    assert rounds.count("rests") > 3 * rounds.count("cannot")


def test_beside_another_it_is_looked_at_with_that() -> None:
    planner, first, second = ready(), view(1), view(2)
    planner.start(first, ["s"])
    planner.start(second, ["s"])
    assert not planner.rests([first, second], Load(2, 0, 3))


def test_one_that_begins_beside_another_does_not_rest_for_that() -> None:
    planner, first, second = ready(), view(1), view(2)
    planner.start(first)
    planner.start(second, ["s"])
    assert not planner.rests([second], Load(1, 0, 3))


def test_a_drafter_of_which_nothing_is_known_is_asked() -> None:
    planner, request = ready(), view(1)
    planner.start(request, ["another"])
    assert not planner.rests([request], Load(1, 0, 3))


def test_nothing_rests_before_plain_decoding_was_measured() -> None:
    planner, request = AdaptivePlanner(), view(1)
    planner.start(request, ["s"])
    assert not planner.rests([request], Load(1, 0, 3))


def test_what_a_question_costs_holds_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    planner, request, load = ready(), view(1), Load(1, 0, 3)
    planner.start(request, ["s"])
    planner.rests_next([request], load)
    before = planner._question.cost(["s"], load)
    monkeypatch.setattr(planner._asking, "cost", lambda _: 7.0)
    costs = []
    for _ in range(2 * FRESH):
        costs.append(planner._question.cost(["s"], load))
        planner.observe(Round(load, 1, {}, PLAIN_MS, 0.0, ((1, Outcome(3, (10,))),)))
    held = costs.count(before)
    assert costs[:held] == [before] * held
    assert 0 < held <= FRESH
    assert all(cost > 7.0 for cost in costs[held:])
