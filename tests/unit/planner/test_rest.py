"""Rounds in which nothing can happen are learnt from together, and nothing is lost by that."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace

import pytest

from foredraft.bench.charge import charge
from foredraft.bench.trace import Trace
from foredraft.planner.adaptive import AdaptivePlanner
from foredraft.planner.attention import LONGEST_REST, Attention
from foredraft.planner.hints import Hints
from foredraft.planner.income import INCOME
from foredraft.planner.rest import Rest
from foredraft.protocols import Planner, RequestView
from foredraft.types import Draft, DraftLimit, Load, Outcome, Round, SamplingParams
from planner_doubles import PlannerAround
from planner_rounds import BONUS, PLAIN_MS, chain, linear, teach
from virtual_time import ask, curve, mixed_trace, noise, trace_set, virtual_engine

ALONE = Load(1, 0, 0)
BOTH = Load(2, 0, 0)


def view(number: int) -> RequestView:
    return RequestView(number, [1, 2, 3], SamplingParams(), 0, 3, "", ())


def test_a_rest_ends_after_the_rounds_it_was_given() -> None:
    rest = Rest()
    rest.begin([1], ALONE, 2)
    assert [rest.goes_on([view(1)], ALONE) for _ in range(4)] == [True, True, False, False]


def test_rounds_of_a_rest_are_counted_once() -> None:
    rest = Rest()
    rest.begin([1, 2], BOTH, 3)
    for _ in range(2):
        assert rest.goes_on([view(1), view(2)], BOTH)
    assert rest.end() == 2
    assert rest.end() == 0
    assert rest.goes_on([view(1), view(2)], BOTH), "it goes on"


def test_what_is_promising_interrupts_it() -> None:
    rest = Rest()
    rest.begin([1], ALONE, 8)
    assert rest.goes_on([view(1)], ALONE)
    rest.interrupt()
    assert not rest.goes_on([view(1)], ALONE)
    assert rest.end() == 1


@pytest.mark.parametrize(
    ("requests", "load"),
    [
        ([1], ALONE),
        ([1, 3], BOTH),
        ([1, 2, 3], Load(3, 0, 0)),
        ([1, 2], Load(2, 64, 0)),
        ([1, 2], Load(2, 0, 0, owed=4)),
    ],
    ids=["leaving", "another", "joining", "a prompt", "rows that are owed"],
)
def test_anything_else_ends_it(requests: list[int], load: Load) -> None:
    rest = Rest()
    rest.begin([1, 2], BOTH, 8)
    assert not rest.goes_on([view(number) for number in requests], load)
    assert not rest.goes_on([view(1), view(2)], BOTH), "it does not begin again by itself"


def test_nobody_rests_beside_a_prompt() -> None:
    rest = Rest()
    rest.begin([1], Load(1, 64, 0), 8)
    assert not rest.goes_on([view(1)], ALONE)


def test_attention_rests_exactly_until_it_would_say_yes() -> None:
    """Against an attention that is asked in every round."""
    for cost in (0.02, 0.05, 0.12, 0.3):
        asked, resting = Attention(), Attention()
        rounds = yes = 0
        while rounds < 400:
            said = asked.tick([1], cost)
            assert resting.tick([1], cost) == said
            yes += bool(said)
            rounds += 1
            if said:
                continue
            rest = resting.rest([1], cost)
            assert 0 <= rest <= LONGEST_REST
            for _ in range(rest):
                assert not asked.tick([1], cost)
            resting.rested([1], rest)
            rounds += rest
        assert yes


def test_several_rest_until_the_first_would_be_asked() -> None:
    """The same, of requests that begin one after another."""
    for cost in (0.05, 0.12, 0.3):
        asked, resting = Attention(), Attention()
        requests: list[int] = []
        rests: list[int] = []
        ends = 0
        for rounds in range(400):
            if rounds % 7 == 0 and len(requests) < 4:
                requests.append(rounds)
            said = asked.tick(requests, cost)
            assert resting.tick(requests, cost) == said
            if said:
                continue
            rest = resting.rest(requests, cost)
            for _ in range(rest):
                assert not asked.tick(requests, cost)
            resting.rested(requests, rest)
            rests.append(rest)
            if rest < LONGEST_REST:  # no shorter than it had to be
                ends += 1
                assert deepcopy(asked).tick(requests, cost)
        assert ends > 10
        assert max(rests) >= 3


def test_a_rest_is_no_longer_than_what_is_known_lasts() -> None:
    attention = Attention()
    attention.tick([1], 0.5)
    whole = attention.rest([1], 0.5)
    assert whole > 2
    assert [attention.rest([1], 0.5, most) for most in (0, 2, 100)] == [0, 2, whole]


def test_who_costs_next_to_nothing_never_rests() -> None:
    attention = Attention()
    assert attention.tick([1], INCOME)
    assert attention.rest([1], INCOME) == 0
    assert attention.rest([2], 0.5) == 0, "nor who is not known"
    attention.tick([3], 0.5)
    assert attention.rest([3, 2], 0.5) == 0


# --- the planner ---------------------------------------------------------------------------------------

CPU = linear(0.4)
ASKING_MS = 0.45


class Restless(Rest):
    """Never rests: every round is learnt from when it is over."""

    def goes_on(self, requests: Sequence[RequestView], load: Load) -> bool:
        return False


class Table:
    """Requests that decode together. Drafts are right for the first tokens of each and seldom afterwards;
    asking for them takes `ASKING_MS`.
    """

    def __init__(self, *, rests: bool) -> None:
        self.planner = AdaptivePlanner()
        if not rests:
            self.planner._rest = Restless()
        teach(self.planner, CPU)
        self.views: list[RequestView] = []
        self.aside: list[Round] = []
        self.asked: list[list[int]] = []
        self.drafted: list[int] = []

    def join(self, number: int) -> None:
        """Another request, whose prompt the next forward reads beside the others' rows."""
        newcomer = RequestView(number, [0], prompt_length=1)
        self.planner.start(newcomer)
        if self.views:
            self.round(prefill=8)
        self.views.append(newcomer)

    def leave(self, number: int) -> None:
        self.settle()
        [leaving] = [request for request in self.views if request.id == number]
        self.views.remove(leaving)
        self.planner.stop(leaving)

    def round(self, *, prefill: int = 0, failing: int | None = None) -> None:
        """`failing`: the request that ends in this round with an error, so that it has no outcome."""
        load = Load(len(self.views), prefill, max(len(request.tokens) for request in self.views))
        resting = self.planner.rests(self.views, load)
        limits: Sequence[DraftLimit | None] = [None] * len(self.views)
        if not resting:
            self.settle()
            limits = self.planner.limits(self.views, ["s"], load).get("s", limits)
        candidates = [[chain(4, match_length=8)] if limit else [] for limit in limits]
        chosen: list[Draft | None] = [None] * len(self.views)
        if any(candidates):
            chosen = self.planner.choose(self.views, candidates, load)
        outcomes = []
        for request, draft in zip(self.views, chosen, strict=True):
            right = 4 if len(request.tokens) < 60 or len(request.tokens) % 50 < 3 else 0
            accepted = min(right, len(draft or ()))
            committed = (*chain(4).tokens[:accepted], chain(4).tokens[0] if right else BONUS)
            if request.id != failing:
                outcomes.append((request.id, Outcome(len(request.tokens), committed, draft, accepted)))
                request.tokens.extend(committed)
        rows = len(self.views) + sum(len(draft or ()) for draft in chosen)
        spent = {"s": ASKING_MS} if any(candidates) else {}
        self.asked.append([r.id for r, limit in zip(self.views, limits, strict=True) if limit])
        self.drafted.append(rows - len(self.views))
        measured = Round(load, rows + prefill, spent, PLAIN_MS * CPU(rows), 0.0, tuple(outcomes))
        self.aside.append(measured)
        if not resting or failing is not None:
            self.settle()
        if failing is not None:
            self.leave(failing)

    def settle(self) -> None:
        """Let the planner learn from what was put aside."""
        aside, self.aside = self.aside, []
        for measured in aside:
            self.planner.observe(measured)

    def learnt(self) -> object:
        self.settle()
        planner = self.planner
        return (
            planner.rounds,
            planner.curve(),
            planner.resize,
            planner.knowledge(),
            planner._stakes._stakes,
            planner._attention._requests,
            {name: asked.credit for name, asked in planner._asking._drafters.items()},
        )


def until_resting(tables: Sequence[Table]) -> None:
    """Play until the one that rests is in the middle of a rest, and the others as many rounds."""
    for _ in range(400):
        for table in tables:
            table.round()
        if tables[0].aside and tables[0].planner._rest._left > 0:
            return
    raise AssertionError("nobody rests")


def test_what_is_learnt_is_the_same_without_a_rest() -> None:
    tables = [Table(rests=True), Table(rests=False)]
    for number in (1, 2, 3):
        for table in tables:
            table.join(number)
    for change in ("join", "leave", "fail", "leave"):
        for _ in range(30):
            for table in tables:
                table.round()
        until_resting(tables)
        for table in tables:
            if change == "join":
                table.join(4)
            elif change == "leave":
                table.leave(table.views[0].id)
            else:
                table.round(failing=table.views[1].id)
        assert tables[0].learnt() == tables[1].learnt(), change
    until_resting(tables)
    assert tables[0].learnt() == tables[1].learnt()
    resting, restless = tables
    assert resting.asked == restless.asked
    assert resting.drafted == restless.drafted
    assert any(resting.drafted)
    assert sum(not asked for asked in resting.asked) > 50


def test_what_was_learnt_may_be_asked_for_in_the_middle_of_a_rest() -> None:
    resting, restless = tables = [Table(rests=True), Table(rests=False)]
    for table in tables:
        table.join(1)
        table.join(2)
    until_resting(tables)
    resting.settle()
    assert resting.planner.rounds == restless.planner.rounds
    assert resting.planner._rest._left > 0, "it goes on"


def test_nobody_rests_after_a_round_in_which_one_failed() -> None:
    """What looks promising was weighed for one more."""
    quiet = 0
    for rounds in range(60, 160):
        table = Table(rests=True)
        table.join(1)
        table.join(2)
        table.join(3)
        for _ in range(rounds):
            table.round()
        table.round(failing=table.views[1].id)
        if table.asked[-1] and not table.drafted[-1]:
            quiet += 1
            load = Load(2, 0, max(len(request.tokens) for request in table.views))
            assert not table.planner.rests(table.views, load)
    assert quiet, "somebody was asked for nothing"


class Counted(PlannerAround):
    """Counts the rounds in which somebody is asked, and those in which it turns out that nobody can be."""

    def __init__(self, inner: Planner) -> None:
        super().__init__(inner)
        self.asked = self.vain = 0

    def limits(
        self, requests: Sequence[RequestView], drafters: Sequence[str], load: Load
    ) -> Mapping[str, Sequence[DraftLimit | None]]:
        limits = super().limits(requests, drafters, load)
        self.asked += bool(limits)
        self.vain += not limits
        return limits


def misleading(length: int, rng: random.Random, name: str) -> Trace:
    """An output of short pieces of its prompt: most drafts are right, and too long."""
    prompt = noise(60, rng)
    output: list[int] = []
    while len(output) < length:
        start = rng.randrange(50)
        output += prompt[start : start + rng.randint(3, 8)]
    return Trace(name, "misleading", prompt, tuple(output[:length]))


def test_who_cannot_ask_after_a_draft_rests_at_once() -> None:
    """To find out in the round after it that nobody can pay takes half a question."""
    rng = random.Random(5)
    traces = trace_set([misleading(120, rng, f"misleading/{n}") for n in range(8)])
    with virtual_engine(traces, curve("cpu-q4_0"), "auto") as (engine, model):
        charge(engine, model)
        planner = Counted(engine.planner)
        engine._runner.setup = replace(engine._runner.setup, planner=planner)
        for trace in traces.traces:
            ask(engine, trace)
            while not engine.idle:
                engine.step()
        assert sum(rows > 1 for rows in model.sizes) > 100, "drafts"
    assert planner.asked > 200
    assert planner.vain < planner.asked / 20


@pytest.mark.parametrize("level", [1, 3])
def test_an_engine_decides_and_learns_the_same_without_a_rest(
    level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds that rest are told later, by the engine itself: in virtual time, with questions that cost. But
    for hints, which go by what the last rounds taught of tokens.
    """
    monkeypatch.setattr(Hints, "likely", lambda *_: None)
    rng = random.Random(5)
    traces = trace_set([mixed_trace(rng.randrange(60, 160), rng, f"mixed/{n}") for n in range(8)])
    found: list[object] = []
    for rest in (Rest(), Restless()):
        with virtual_engine(traces, curve("steep"), "auto", sequences=level) as (engine, model):
            planner = engine.planner
            assert isinstance(planner, AdaptivePlanner)
            charge(engine, model)
            planner._rest = rest
            waiting = list(traces.traces)
            rounds: list[tuple[int, tuple[int, ...]]] = []
            while waiting or not engine.idle:
                while waiting and engine.running_count + engine.waiting_count < level:
                    ask(engine, waiting.pop(0))
                engine.step()
                rounds.append((model.sizes[-1], tuple(sorted(planner._attention._requests))))
            assert isinstance(rest, Restless) or rest.requests, "nobody rested"
            found.append((model.seconds, rounds, engine.planner.reason(), planner.curve()))
    assert found[0] == found[1]
