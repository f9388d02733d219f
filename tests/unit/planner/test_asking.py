"""A draft model of honest cost: asked where it pays, and tried where it does not.

Its time is a token's for every drafted token and, when it is first asked in a request, that of its prompt.
"""

from __future__ import annotations

import random

import pytest

from foredraft.engine.warmup import SIZES
from foredraft.planner.adaptive import AdaptivePlanner
from foredraft.planner.asking import FIRST_PROBE, LENT, MODEST, SLACK, Asking
from foredraft.planner.cost import CostCurve
from foredraft.planner.income import INCOME
from foredraft.protocols import RequestView
from foredraft.types import Draft, Load, Outcome, Round
from planner_rounds import PLAIN_MS, Curve, Game, all_right, chain, linear, teach

CPU = linear(0.2)
NEVER = 10**9
LONGEST = 16


class DraftModel:
    """Answers of `answer` tokens one after another; each drafted token is right with probability `chance`."""

    def __init__(
        self, token_ms: float, chance: float, *, prompt: int = 1, read_ms: float = 0.0, answer: int = NEVER
    ) -> None:
        self.planner = AdaptivePlanner()
        for rows in SIZES:
            self.planner.observe(Round(Load(1, 0, 0), rows, {}, PLAIN_MS * CPU(rows), 0.0, ()))
        self.curve: Curve = CPU
        self.token_ms, self.chance, self.read_ms = token_ms, chance, read_ms
        self._prompt, self._answer, self._rng = prompt, answer, random.Random(0)
        self._read = 0
        self.view = RequestView(0, [0] * prompt, prompt_length=prompt)
        self.lengths: list[int] = []

    def play(self, rounds: int) -> tuple[float, float]:
        """The share of rounds with a draft, and the rate relative to plain decoding."""
        ms = tokens = drafts = 0.0
        for _ in range(rounds):
            spent, committed, drafted = self._round()
            ms, tokens, drafts = ms + spent, tokens + committed, drafts + drafted
            if len(self.view.tokens) - self.view.prompt_length >= self._answer:
                self.planner.stop(self.view)
                self.view = RequestView(self.view.id + 1, [0] * self._prompt, prompt_length=self._prompt)
                self._read = 0
        return drafts / rounds, PLAIN_MS * tokens / ms

    def _round(self) -> tuple[float, int, bool]:
        load = Load(1, 0, len(self.view.tokens))
        limit = self.planner.limits([self.view], ["dm"], load).get("dm", [None])[0]
        candidates: list[Draft] = []
        spent: dict[str, float] = {}
        if limit is not None:
            length, survival = 1, self.chance
            while length < min(limit.max_tokens, LONGEST) and survival >= limit.min_survival:
                length, survival = length + 1, survival * self.chance
            candidates = [Draft((1,) * length, "dm", confidence=(self.chance,) * length)]
            unread = len(self.view.tokens) - self._read
            spent["dm"] = length * self.token_ms + self.read_ms * unread
            self._read = len(self.view.tokens)
            self.lengths.append(length)
        [chosen] = self.planner.choose([self.view], [candidates], load)
        right = 0
        while right < LONGEST and self._rng.random() < self.chance:
            right += 1
        accepted = min(right, len(chosen or ()))
        committed = (1,) * accepted + ((1,) if right > accepted else (9,))
        rows = 1 + len(chosen or ())
        forward = PLAIN_MS * self.curve(rows)
        outcome = Outcome(len(self.view.tokens), committed, chosen, accepted)
        self.view.tokens.extend(committed)
        self.planner.observe(Round(load, rows, spent, forward, 0.0, ((self.view.id, outcome),)))
        return forward + sum(spent.values()), len(committed), chosen is not None


def test_the_first_ask_is_a_probe() -> None:
    game = DraftModel(1.5, 0.9)
    game.play(1)
    assert game.lengths == [FIRST_PROBE]


def test_reading_a_long_prompt_does_not_turn_a_good_draft_model_off() -> None:
    game = DraftModel(1.5, 0.9, prompt=2000, read_ms=0.5)
    game.play(500)
    share, rate = game.play(500)
    assert share > 0.9
    assert rate > 1.4


def test_answers_that_earn_the_reading_are_drafted() -> None:
    game = DraftModel(1.5, 0.9, prompt=400, read_ms=0.5, answer=300)
    game.play(1500)
    assert game.play(1500)[1] > 1.3


def test_short_answers_to_long_prompts_are_not_slower() -> None:
    game = DraftModel(1.5, 0.9, prompt=2000, read_ms=0.5, answer=20)
    game.play(20)
    assert game.play(2000)[1] > 0.985


@pytest.mark.parametrize("chance", [0.0, 0.1, 0.3, 0.5])
def test_a_useless_draft_model_costs_a_percent(chance: float) -> None:
    game = DraftModel(3.0, chance)
    assert game.play(50)[1] > 0.9
    assert game.play(1000)[1] > 0.98


def test_a_useless_one_that_becomes_good_is_found_out() -> None:
    game = DraftModel(1.5, 0.05)
    game.play(400)
    game.chance = 0.95
    game.play(500)
    share, rate = game.play(500)
    assert share > 0.8
    assert rate > 1.5


def test_a_stall_of_the_machine_is_over_when_it_is_over() -> None:
    game = DraftModel(1.5, 0.9)
    before = game.play(300)[1]
    game.token_ms = 15.0
    game.curve = lambda rows: 10 * CPU(rows)
    game.play(20)
    game.curve, game.token_ms = CPU, 1.5
    assert game.play(200)[1] > 0.9 * before


def test_a_stall_of_the_draft_model_alone_is_found_to_be_over() -> None:
    game = DraftModel(1.5, 0.9)
    before = game.play(300)[1]
    game.token_ms = 15.0
    game.play(20)
    game.token_ms = 1.5
    game.play(500)
    assert game.play(300)[1] > 0.9 * before


def test_tokens_that_were_drafted_and_not_verified_count() -> None:
    """A drafter that lost to another source still drafted: its token cost must not look higher for it."""
    planner = AdaptivePlanner()
    for rows in SIZES:
        planner.observe(Round(Load(1, 0, 0), rows, {}, PLAIN_MS * CPU(rows), 0.0, ()))
    view = RequestView(1, [0], prompt_length=1)
    worth = None
    for _ in range(12):
        load = Load(1, 0, len(view.tokens))
        asked = planner.limits([view], ["dm", "free"], load)
        drafts = [Draft((1,) * 12, "free", confidence=(0.98,) * 12)]
        spent = {"free": 0.001}
        if asked["dm"][0] is not None:
            length = min(4, asked["dm"][0].max_tokens)
            drafts.append(Draft((1,) * length, "dm", confidence=(0.98,) * length))
            spent["dm"] = 1.5 * length
        [chosen] = planner.choose([view], [drafts], load)
        rows = 1 + len(chosen or ())
        outcome = Outcome(len(view.tokens), (1,) * rows, chosen, rows - 1)
        view.tokens.extend(outcome.tokens)
        planner.observe(Round(load, rows, spent, PLAIN_MS * CPU(rows), 0.0, ((1, outcome),)))
        worth = planner._asking._drafters["dm"].worth
    assert worth is not None
    assert worth.token_cost == pytest.approx(0.15)


def test_it_says_that_a_draft_model_does_not_pay() -> None:
    game = DraftModel(30.0, 0.2)
    game.play(300)
    assert "longer" in (game.planner.reason() or "")


@pytest.mark.parametrize(("decoding", "worth"), [(2, 1.5 / 2), (4, 2.5 / 4), (8, 4.5 / 8)])
def test_in_company_no_draft_is_wanted_that_is_worth_less_than_a_row(decoding: int, worth: float) -> None:
    """A token is worth what it takes each of them in a plain round, and a row costs half a plain forward."""
    planner = AdaptivePlanner()
    teach(planner, linear(0.5))
    Game(planner, linear(0.5)).play(3, [chain(4)], all_right)
    views = [RequestView(10 + number, [0], prompt_length=1) for number in range(decoding)]
    for limit in planner.limits(views, ["s"], Load(decoding, 0, 1))["s"]:
        assert limit is not None
        assert limit.min_survival == pytest.approx(MODEST * 0.5 / worth, rel=0.02)
        assert limit.min_chance == pytest.approx(SLACK * 0.5 / worth, rel=0.02)


def test_a_drafter_that_has_earned_nothing_is_asked_on_credit_where_it_may_pay() -> None:
    """It takes 4 % of a plain round, and is never right."""
    curve = CostCurve()
    for _ in range(4):
        curve.tick()
        curve.add(1, PLAIN_MS)
    asking, view = Asking(curve, 1.03), RequestView(1, [0] * 9, prompt_length=1)
    load, share = Load(1, 0, 9), 0.04
    outcome = Outcome(8, (5,))

    def asked(rounds: int, *promising: int) -> int:
        count = 0
        for _ in range(rounds):
            [limit] = asking.limits([view], ["s"], load, {1}, promising)["s"]
            count += limit is not None
            spent = {"s": share * PLAIN_MS} if limit is not None else {}
            asking.observe(Round(load, 1, spent, PLAIN_MS, 0.0, ((1, outcome),)), {"s": 0})
        return count

    asked(20)
    assert asked(8) <= (share + 8 * INCOME) / share, "as often as it has credit"
    lent = asked(8, 1)
    assert lent == 8
    assert asked(8, 2) <= 1, "another request is not meant"
    assert lent + asked(60, 1) <= (LENT + 2 * share + 76 * INCOME) / share, "and not without limit"


def test_who_is_not_listed_any_more_does_not_count_as_asked() -> None:
    curve = CostCurve()
    for _ in range(4):
        curve.tick()
        curve.add(1, PLAIN_MS)
    asking, view, load = Asking(curve, 1.03), RequestView(1, [0] * 9, prompt_length=1), Load(1, 0, 9)
    for _ in range(4):
        asking.limits([view], ["s", "t"], load, {1})
        spent = {"s": 0.02 * PLAIN_MS, "t": 0.02 * PLAIN_MS}
        asking.observe(Round(load, 1, spent, PLAIN_MS, 0.0, ((1, Outcome(8, (5,))),)), {"s": 0, "t": 0})
    asking.earned("t", 100.0)
    asking.limits([view], ["s", "t"], load, {1})
    assert asking.asked, "t is"
    asking.limits([view], ["s"], load, set())
    assert not asking.asked
