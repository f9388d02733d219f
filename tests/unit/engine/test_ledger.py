"""Rounds that rest are told later: all of them, in order, and before anybody could miss them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
import pytest

from foredraft import Engine, SamplingParams
from foredraft.engine.ledger import MOST
from foredraft.planner import StaticPlanner
from foredraft.protocols import RequestView
from foredraft.testing import FakeModel, ScriptedDrafter
from foredraft.types import (
    Draft,
    DraftLimit,
    FinishEvent,
    Load,
    Logits,
    Outcome,
    Probs,
    Round,
    TokenEvent,
)
from planner_doubles import VOCABULARY, PlannerAround, SlowToLearn, counting


def next_one(history: Sequence[int]) -> Draft:
    return Draft(((history[-1] + 1) % (VOCABULARY - 1),), "next")


class Drowsy(PlannerAround):
    """Rests in `rests` rounds of `cycle`, and writes down what it is told, by the text's length before it."""

    def __init__(self, rests: int, cycle: int) -> None:
        super().__init__(StaticPlanner())
        self._rests, self._cycle = rests, cycle
        self._rounds = 0
        self.log: list[tuple[str, int]] = []

    def rests(self, requests: Sequence[RequestView], load: Load) -> bool:
        self._rounds += 1
        resting = self._rounds % self._cycle < self._rests
        self.log.append(("rests" if resting else "awake", len(requests[0].tokens)))
        return resting

    def limits(
        self, requests: Sequence[RequestView], drafters: Sequence[str], load: Load
    ) -> Mapping[str, Sequence[DraftLimit | None]]:
        self.log.append(("limits", len(requests[0].tokens)))
        return super().limits(requests, drafters, load)

    def observe(self, measured: Round) -> None:
        self.log.append(("observe", measured.outcomes[0][1].kept))
        super().observe(measured)

    def stop(self, request: RequestView) -> None:
        self.log.append(("stop", len(request.tokens)))
        super().stop(request)


def engine_of(planner: Drowsy, model: FakeModel | None = None) -> Engine:
    return Engine(
        model or FakeModel(VOCABULARY, logits=counting),
        drafters=[ScriptedDrafter(next_one, name="next")],
        planner=planner,
    )


def tokens(count: int) -> SamplingParams:
    return SamplingParams(max_tokens=count, ignore_eos=True)


def rounds(engine: Engine, count: int) -> Iterator[int]:
    """Decode one request, round by round; gives the tokens that came."""
    engine.add([3], tokens(count))
    while not engine.idle:
        yield sum(isinstance(event, TokenEvent) for event in engine.step())


@pytest.mark.parametrize(("rests", "cycle"), [(0, 1), (1, 2), (3, 4), (5, 7)])
def test_every_round_is_observed_once_in_order(rests: int, cycle: int) -> None:
    planner = Drowsy(rests, cycle)
    engine_of(planner).generate([3], tokens(40))
    began = [length for what, length in planner.log if what in ("rests", "awake")]
    observed = [length for what, length in planner.log if what == "observe"]
    assert observed == began
    assert len(observed) > 15


def test_all_that_rested_is_observed_before_the_planner_decides() -> None:
    planner = Drowsy(3, 4)
    engine_of(planner).generate([3], tokens(40))
    for (before, at), (what, length) in pairwise(planner.log):
        if what == "limits":
            assert before in ("awake", "observe"), "what rested is told after it was found to be over"
            assert at <= length
    told = 0
    for what, _ in planner.log:
        told += {"rests": 1, "awake": 1, "observe": -1}.get(what, 0)
        assert what != "limits" or told == 1, "all but the round that begins"
    assert planner.log[-1][0] == "stop"
    assert told == 0, "and the rest before the request stops"


def test_answers_and_their_counters_are_the_same() -> None:
    done = [engine_of(Drowsy(rests, 4)).generate([3], tokens(40)) for rests in (0, 3)]
    assert done[0].tokens == done[1].tokens
    assert done[1].speculation.rounds > done[0].speculation.rounds
    assert done[1].usage.completion_tokens == 40
    spent = done[1].speculation.ms
    assert all(spent[part] > 0 for part in ("draft", "verify", "sample", "other"))


def test_telling_is_no_part_of_planning() -> None:
    """A question would look the dearer the longer the rest before it. It is a part of the request's time."""
    now = [0.0]
    plan_ms: list[float] = []

    class Slow(Drowsy):
        def observe(self, measured: Round) -> None:
            super().observe(measured)
            plan_ms.append(measured.plan_ms)
            now[0] += 0.25

    model = FakeModel(VOCABULARY, logits=counting)
    drafters = [ScriptedDrafter(next_one, name="next")]
    engine = Engine(model, drafters=drafters, planner=Slow(3, 4), clock=lambda: now[0])
    spent = engine.generate([3], tokens(40)).speculation
    assert plan_ms == [0.0] * spent.rounds
    assert spent.ms["other"] >= 250 * (spent.rounds // 2)


def test_a_drafter_has_heard_the_whole_text_when_it_is_asked() -> None:
    heard: list[int] = []

    class Listening(ScriptedDrafter):
        def start(self, request: RequestView) -> None:
            super().start(request)
            self.text = list(request.tokens)

        def observe(self, request: RequestView, outcome: Outcome) -> None:
            self.text[outcome.kept :] = outcome.tokens
            super().observe(request, outcome)

        def draft(self, requests: Sequence[tuple[RequestView, DraftLimit]]) -> list[Draft | None]:
            assert self.text == requests[0][0].tokens
            heard.append(len(self.text))
            return super().draft(requests)

    drafter = Listening(next_one, name="next")
    model = FakeModel(VOCABULARY, logits=counting)
    engine = Engine(model, drafters=[drafter], planner=Drowsy(3, 4))
    done = engine.generate([3], tokens(40))
    assert not done.speculation.notes
    assert len(heard) > 5
    assert drafter.text[1:] == list(done.tokens), "and the end before it stops"


def test_an_interrupt_while_others_are_told_loses_one_round() -> None:
    class Interrupted(Drowsy):
        def observe(self, measured: Round) -> None:
            super().observe(measured)
            if measured.outcomes[0][1].kept == 12:
                raise KeyboardInterrupt

    planner = Interrupted(1, 1)
    engine = engine_of(planner)
    steps = rounds(engine, 30)
    for _ in range(20):
        next(steps)
    with pytest.raises(KeyboardInterrupt):
        engine.decisions.latest()
    while not engine.idle:
        engine.step()
    assert [length for what, length in planner.log if what == "observe"] == list(range(2, 31))
    kept = [decision.number for decision in engine.decisions.latest()]
    assert kept == list(range(1, 29)), "of 29 rounds"


def test_what_learning_took_is_told_although_a_prompt_came_between() -> None:
    now = [0.0]
    planner = SlowToLearn(StaticPlanner(), now)
    drafters = [ScriptedDrafter(lambda _: ())]
    model = FakeModel(VOCABULARY, logits=counting)
    engine = Engine(model, drafters=drafters, planner=planner, clock=lambda: now[0])
    for _ in range(2):
        engine.generate([3], tokens(4))
    assert planner.late_ms == [0.0, *[pytest.approx(250)] * 5]


def test_what_a_drafter_takes_to_listen_is_in_the_accounts() -> None:
    now = [0.0]

    class Listening(ScriptedDrafter):
        successors = 1

        def observe(self, request: RequestView, outcome: Outcome) -> None:
            now[0] += 0.01
            super().observe(request, outcome)

    drafters = [Listening(lambda _: None, name="next")]
    model = FakeModel(VOCABULARY, logits=counting)
    engine = Engine(model, drafters=drafters, planner=StaticPlanner(), clock=lambda: now[0])
    spent = engine.generate([3], tokens(20)).speculation
    assert spent.ms["draft"] == pytest.approx(1e3 * now[0], abs=25), (
        "the prompt's and the last are no round's"
    )
    assert spent.ms["draft"] > 150


def test_probabilities_do_not_wait_to_be_counted() -> None:
    """They may be megabytes for each round."""
    alive: list[weakref.ref[Probs]] = []

    def sampled(history: Sequence[int]) -> Draft:
        token = (history[-1] + 1) % (VOCABULARY - 1)
        probs = np.zeros(VOCABULARY)
        probs[token] = 1.0
        alive.append(weakref.ref(probs))
        return Draft((token,), "next", probs=(probs,))

    model = FakeModel(VOCABULARY, logits=counting)
    drafter = ScriptedDrafter(sampled, name="next")
    engine = Engine(model, drafters=[drafter], planner=StaticPlanner())
    most = 0
    engine.add([3], SamplingParams(max_tokens=40, ignore_eos=True, temperature=1.0, verify="rejection"))
    while not engine.idle:
        engine.step()
        drafter.outcomes.clear()
        gc.collect()
        most = max(most, sum(probs() is not None for probs in alive))
    assert len(alive) > 10
    assert most <= 2


def test_who_looks_sees_every_round() -> None:
    planner = Drowsy(1, 1)
    engine = engine_of(planner)
    for number, _ in enumerate(rounds(engine, 9)):
        latest = engine.decisions.latest()
        assert [decision.number for decision in latest] == list(range(1, number + 1))
    assert len(latest) == 8


def test_who_listens_hears_of_each_round_when_it_is_over() -> None:
    engine = engine_of(Drowsy(1, 1))
    heard: list[int] = []
    engine.decisions.watch(lambda decision: heard.append(decision.number))
    for number, _ in enumerate(rounds(engine, 9)):
        assert heard == list(range(1, number + 1))


def test_who_begins_to_listen_is_told_nothing_older() -> None:
    engine = engine_of(Drowsy(1, 1))
    heard: list[int] = []
    steps = rounds(engine, 20)
    for _ in range(6):
        next(steps)
    engine.decisions.watch(lambda decision: heard.append(decision.number))
    for _ in steps:
        pass
    assert heard[0] == 6, "the first was the prompt's"


def test_no_more_are_put_aside_than_may_be() -> None:
    planner = Drowsy(1, 1)
    engine = engine_of(planner)
    waiting: list[int] = []
    for _ in rounds(engine, 3 * MOST):
        told = [what for what, _ in planner.log]
        waiting.append(told.count("rests") - told.count("observe"))
    assert max(waiting) == MOST - 1


def test_what_plain_rounds_take_is_known_without_drafters() -> None:
    engine = Engine(FakeModel(VOCABULARY, logits=counting))
    steps = rounds(engine, 20)
    for _ in range(4):
        next(steps)
    known = engine.plain_round(1)
    assert known is not None
    assert known.seen == 3, "and the prompt's was none"


def test_a_request_that_fails_in_a_rest_takes_nothing_with_it() -> None:
    """Its logits are not numbers in one round; the other goes on and is told of."""

    def failing(prefix: Sequence[int]) -> Logits:
        row = counting(prefix)
        return row * np.nan if len(prefix) == 9 and prefix[0] == 5 else row

    planner = Drowsy(1, 1)
    model = FakeModel(VOCABULARY, logits=failing, sequences=2)
    engine = engine_of(planner, model)
    ids = [engine.add([first], tokens(20)) for first in (3, 5)]
    events = []
    while not engine.idle:
        events += engine.step()
    ends = {event.request: event for event in events if isinstance(event, FinishEvent)}
    assert ends[ids[0]].error is None
    assert "numbers" in (ends[ids[1]].error or "")
    observed = [length for what, length in planner.log if what == "observe"]
    assert observed == sorted(observed)
    assert observed == list(range(2, 21))
