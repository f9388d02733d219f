"""What a round leaves behind: planner, drafters, decisions and counters learn of each, whatever happens."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pytest

from foredraft import Engine, SamplingParams
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
    Rows,
    TokenEvent,
)
from planner_doubles import VOCABULARY, PlannerAround, SlowToLearn, counting


def next_one(history: Sequence[int]) -> Draft:
    return Draft(((history[-1] + 1) % (VOCABULARY - 1),), "next")


class Resting(PlannerAround):
    """Attempts no draft in `plain` of `cycle` rounds. Its log has the text's length before each round."""

    def __init__(self, plain: int, cycle: int) -> None:
        super().__init__(StaticPlanner())
        self._plain, self._cycle = plain, cycle
        self._rounds = 0
        self.log: list[tuple[str, int]] = []

    def limits(
        self, requests: Sequence[RequestView], load: Load
    ) -> Mapping[str, Sequence[DraftLimit | None]]:
        self.log.append(("limits", len(requests[0].tokens)))
        self._rounds += 1
        return {} if self._rounds % self._cycle < self._plain else super().limits(requests, load)

    def observe(self, rounds: Sequence[Round]) -> None:
        self.log += [("observe", measured.outcomes[0][1].kept) for measured in rounds]
        super().observe(rounds)

    def stop(self, request: RequestView) -> None:
        self.log.append(("stop", len(request.tokens)))
        super().stop(request)

    def lengths(self, kind: str) -> list[int]:
        return [length for what, length in self.log if what == kind]


def engine_of(planner: Resting, model: FakeModel | None = None) -> Engine:
    return Engine(
        model or FakeModel(VOCABULARY, logits=counting),
        drafters=[ScriptedDrafter(next_one, name="next")],
        planner=planner,
    )


def tokens(count: int) -> SamplingParams:
    return SamplingParams(max_tokens=count, ignore_eos=True)


def rounds(engine: Engine, count: int) -> Iterator[int]:
    """Decode one request, round by round; gives the number of tokens that came."""
    engine.add([3], tokens(count))
    while not engine.idle:
        yield sum(isinstance(event, TokenEvent) for event in engine.step())


@pytest.mark.parametrize(("plain", "cycle"), [(0, 1), (1, 2), (3, 4), (5, 7)])
def test_every_round_is_observed_once_in_order_before_the_request_stops(plain: int, cycle: int) -> None:
    planner = Resting(plain, cycle)
    engine_of(planner).generate([3], tokens(40))
    observed, planned = planner.lengths("observe"), planner.lengths("limits")
    assert observed[: len(planned)] == planned
    assert observed[len(planned) :] in ([], [40]), "nothing is planned where no draft has room"
    assert len(planner.lengths("observe")) > 15
    assert planner.log[-1] == ("stop", 41)


def test_answers_and_their_counters_are_the_same_however_often_drafts_are_attempted() -> None:
    done = [engine_of(Resting(plain, 4)).generate([3], tokens(40)) for plain in (0, 3)]
    assert done[0].tokens == done[1].tokens
    assert done[1].speculation.rounds > done[0].speculation.rounds
    assert done[1].usage.completion_tokens == 40
    spent = done[1].speculation.ms
    assert all(spent[part] > 0 for part in ("draft", "verify", "sample", "other"))


def test_learning_is_no_part_of_planning_and_comes_with_the_next_round() -> None:
    now = [0.0]
    plan_ms: list[float] = []

    class Slow(SlowToLearn):
        def observe(self, rounds: Sequence[Round]) -> None:
            plan_ms.extend(measured.plan_ms for measured in rounds)
            super().observe(rounds)

    planner = Slow(StaticPlanner(), now)
    model = FakeModel(VOCABULARY, logits=counting)
    drafters = [ScriptedDrafter(lambda _: None)]
    engine = Engine(model, drafters=drafters, planner=planner, clock=lambda: now[0])
    for _ in range(2):
        spent = engine.generate([3], tokens(4)).speculation
    assert plan_ms == [0.0] * 6
    assert planner.late_ms == [0.0, *[pytest.approx(250)] * 5], "although a prompt came between"
    assert spent.ms["other"] == pytest.approx(750), "of three rounds, in the request's time"


def test_a_drafter_has_observed_the_whole_text_when_it_drafts() -> None:
    lengths: list[int] = []

    class Following(ScriptedDrafter):
        def start(self, request: RequestView) -> None:
            super().start(request)
            self.text = list(request.tokens)

        def observe(self, request: RequestView, outcome: Outcome) -> None:
            self.text[outcome.kept :] = outcome.tokens
            super().observe(request, outcome)

        def draft(self, requests: Sequence[tuple[RequestView, DraftLimit]]) -> list[Draft | None]:
            assert self.text == requests[0][0].tokens
            lengths.append(len(self.text))
            return super().draft(requests)

    drafter = Following(next_one, name="next")
    model = FakeModel(VOCABULARY, logits=counting)
    engine = Engine(model, drafters=[drafter], planner=Resting(3, 4))
    done = engine.generate([3], tokens(40))
    assert not done.speculation.notes
    assert len(lengths) > 5
    assert drafter.text[1:] == list(done.tokens), "and the end before it stops"


def test_what_a_drafter_takes_to_observe_is_in_the_accounts() -> None:
    now = [0.0]

    class Slow(ScriptedDrafter):
        def observe(self, request: RequestView, outcome: Outcome) -> None:
            now[0] += 0.01
            super().observe(request, outcome)

    model = FakeModel(VOCABULARY, logits=counting)
    drafters = [Slow(lambda _: None, name="next")]
    engine = Engine(model, drafters=drafters, planner=StaticPlanner(), clock=lambda: now[0])
    spent = engine.generate([3], tokens(20)).speculation
    assert spent.ms["draft"] == pytest.approx(1e3 * now[0], abs=25), "that of the last round is no round's"
    assert spent.ms["draft"] > 150


def test_an_interrupt_while_the_planner_learns_leaves_a_working_engine() -> None:
    class Interrupted(Resting):
        def observe(self, rounds: Sequence[Round]) -> None:
            super().observe(rounds)
            if rounds[0].outcomes[0][1].kept == 12:
                raise KeyboardInterrupt

    planner = Interrupted(1, 1)
    engine = engine_of(planner)
    steps = rounds(engine, 30)
    for _ in range(11):
        next(steps)
    with pytest.raises(KeyboardInterrupt):
        next(steps)
    found = []
    while not engine.idle:
        found += [event.token for event in engine.step() if isinstance(event, TokenEvent)]
    assert found[-1] == (3 + 30) % 15
    assert planner.lengths("observe") == list(range(2, 31)), "each once"


def test_a_request_that_fails_takes_nothing_with_it() -> None:
    """Its logits are not numbers in one round; the other goes on, and its rounds are observed."""

    def failing(prefix: Sequence[int]) -> Logits:
        row = counting(prefix)
        return row * np.nan if len(prefix) == 9 and prefix[0] == 5 else row

    planner = Resting(1, 1)
    engine = engine_of(planner, FakeModel(VOCABULARY, logits=failing, sequences=2))
    ids = [engine.add([first], tokens(20)) for first in (3, 5)]
    events = []
    while not engine.idle:
        events += engine.step()
    ends = {event.request: event for event in events if isinstance(event, FinishEvent)}
    assert ends[ids[0]].error is None
    assert "numbers" in (ends[ids[1]].error or "")
    assert planner.lengths("observe") == list(range(2, 21))


def test_requests_that_may_draft_and_attempt_nothing_cost_no_drafter_call() -> None:
    calls = []

    class Counted(ScriptedDrafter):
        def draft(self, requests: Sequence[tuple[RequestView, DraftLimit]]) -> list[Draft | None]:
            calls.append(len(requests))
            return super().draft(requests)

    model = FakeModel(VOCABULARY, logits=counting, sequences=2)
    drafters = [Counted(next_one, name="next")]
    with Engine(model, drafters=drafters, planner=Resting(1, 1)) as engine:
        engine.run([engine.add([first], tokens(9)) for first in (3, 5)])
    assert calls == []


def test_a_kv_cache_without_room_for_drafts_verifies_none() -> None:
    class Full(FakeModel):
        def forward(self, batch: Sequence[Rows]) -> Logits:
            assert max(len(rows.tokens) for rows in batch) == 1 or batch[0].start == 0
            return super().forward(batch)

    planner = Resting(0, 1)
    model = Full(VOCABULARY, logits=counting, max_batch=1)
    done = engine_of(planner, model).generate([3], tokens(9))
    assert done.tokens == tuple((4 + i) % 15 for i in range(9))
    assert done.speculation.rounds == 8


def test_probabilities_of_drafts_are_freed() -> None:
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


def test_the_decisions_have_every_round_when_it_is_over() -> None:
    engine = engine_of(Resting(1, 1))
    watched: list[int] = []
    engine.decisions.watch(lambda decision: watched.append(decision.number))
    for number, _ in enumerate(rounds(engine, 9)):
        latest = [decision.number for decision in engine.decisions.latest()]
        assert latest == watched == list(range(1, number + 1))
    assert len(watched) == 8


def test_a_listener_is_called_with_nothing_older() -> None:
    engine = engine_of(Resting(1, 1))
    watched: list[int] = []
    steps = rounds(engine, 20)
    for _ in range(6):
        next(steps)
    engine.decisions.watch(lambda decision: watched.append(decision.number))
    for _ in steps:
        pass
    assert watched[0] == 6, "the first was the prompt's"


def test_what_plain_rounds_take_is_known_without_drafters() -> None:
    engine = Engine(FakeModel(VOCABULARY, logits=counting))
    steps = rounds(engine, 20)
    for _ in range(4):
        next(steps)
    known = engine.plain_round(1)
    assert known is not None
    assert known.seen == 3, "and the prompt's was none"


class Sharing(FakeModel):
    """Leaves out one thread in every other forward; that is decided in the forward."""

    @property
    def idle_threads(self) -> int:
        return len(self.forwards) % 2


class Recording(PlannerAround):
    """Keeps the threads left out in each round, by what the planner is told."""

    def __init__(self) -> None:
        super().__init__(StaticPlanner())
        self.idle: list[int] = []

    def observe(self, rounds: Sequence[Round]) -> None:
        self.idle += [measured.load.idle_threads for measured in rounds]


def test_a_round_has_the_number_of_threads_of_its_forward() -> None:
    planner = Recording()
    drafters = [ScriptedDrafter(next_one, name="next")]
    engine = Engine(Sharing(VOCABULARY, logits=counting), drafters=drafters, planner=planner)
    engine.generate([1, 2, 3], tokens(9))
    first = planner.idle[0]
    assert len(planner.idle) > 2
    assert planner.idle == [(first + i) % 2 for i in range(len(planner.idle))]
    assert first == 0, "the prompt's forward was the first, this is the second"
