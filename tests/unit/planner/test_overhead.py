from __future__ import annotations

import pytest

from foredraft.planner.attention import Attention
from foredraft.planner.overhead import DOUBTED, FEWEST, PRIOR_MS, Overhead
from foredraft.planner.tables.window import WINDOW
from foredraft.types import Load, Outcome, Round

PLAIN_MS = 4.0
"""Of a plain forward."""


def test_what_was_recalled_holds_until_enough_was_measured() -> None:
    overhead = Overhead()
    overhead.recall(0.8)
    assert overhead.ms(1) == 0.8
    overhead.add(0.1, asked=False)
    overhead.add(2.1, asked=True)
    assert overhead.ms(1) <= 0.8 * 4 / 3, "a single round may have been a busy moment"
    for _ in range(FEWEST):
        overhead.add(1.1, asked=True)
    assert overhead.ms(1) == pytest.approx(1.0)


@pytest.mark.parametrize("truly", [0.1, 0.4, 0.8])
@pytest.mark.parametrize("questions", [1, 2])
def test_runs_of_few_questions_find_out_what_one_takes_together(truly: float, questions: int) -> None:
    known = PRIOR_MS
    for _ in range(12):
        overhead = Overhead()
        overhead.recall(known)
        overhead.add(0.1, asked=False)
        for _ in range(questions):
            overhead.add(0.1 + truly, asked=True)
        known = overhead.ms(1)
    assert known == pytest.approx(truly, rel=0.05)


@pytest.mark.parametrize("supposed", [0.0, 0.3, 0.8])
def test_a_stall_in_the_first_question_is_not_believed(supposed: float) -> None:
    overhead = Overhead()
    overhead.recall(supposed)
    overhead.add(0.1, asked=False)
    overhead.add(80.0, asked=True)
    assert overhead.ms(1) <= 4 / 3 * max(supposed, PRIOR_MS)


def test_it_is_supposed_to_cost_something_until_rounds_of_both_kinds_were_seen() -> None:
    overhead = Overhead()
    for _ in range(5):
        overhead.add(0.5, asked=True)
    assert overhead.ms(1) == PRIOR_MS
    overhead.add(0.2, asked=False)
    assert round(overhead.ms(1), 6) == 0.3


def test_what_a_round_takes_after_it_was_learnt_from_counts_as_its_own() -> None:
    overhead = Overhead()
    for _ in range(3):
        overhead.add(0.5, asked=True, late_ms=0.1)
        overhead.add(0.2, asked=False, late_ms=0.3)
    overhead.add(0.5, asked=True, late_ms=0.1)
    assert round(overhead.ms(1), 6) == 0.5


def test_a_stall_does_not_change_it() -> None:
    overhead = Overhead()
    for _ in range(8):
        overhead.add(0.5, asked=True)
        overhead.add(0.2, asked=False)
    overhead.add(50.0, asked=True)
    assert round(overhead.ms(1), 6) == 0.3


def test_what_a_round_without_a_question_takes_before_its_forward() -> None:
    def learn(plan_ms: float, draft_ms: dict[str, float]) -> None:
        outcomes = ((1, Outcome(1, (2,))),)
        overhead.learn(Round(Load(1, 0, 0), 1, draft_ms, PLAIN_MS, 0.1, outcomes, plan_ms=plan_ms))

    overhead = Overhead()
    assert overhead.resting_share() == 0.0
    for _ in range(5):
        learn(0.04, {})
        learn(0.9, {"suffix": 0.2})
    learn(30.0, {})
    assert overhead.resting_share() == pytest.approx(0.01), "neither a question nor a stall"


def test_what_is_done_in_every_other_round_counts_half() -> None:
    overhead = Overhead()
    for turn in range(WINDOW):
        plan_ms = 0.08 if turn % 2 else 0.02
        outcomes = ((1, Outcome(1, (2,))),)
        overhead.learn(Round(Load(1, 0, 0), 1, {}, PLAIN_MS, 0.1, outcomes, plan_ms=plan_ms))
    assert overhead.resting_share() * PLAIN_MS == pytest.approx(0.05, abs=0.005)


def test_asking_is_never_a_gain() -> None:
    overhead = Overhead()
    for _ in range(FEWEST):
        overhead.add(0.1, asked=True)
        overhead.add(0.2, asked=False)
    assert overhead.ms(1) == 0.0


def test_company_is_measured_apart_and_begins_as_fewer_did() -> None:
    overhead = Overhead()
    for requests, asking in ((1, 0.3), (4, 0.5)):
        for _ in range(FEWEST):
            overhead.add(0.2 * requests + asking, asked=True, requests=requests)
            overhead.add(0.2 * requests, asked=False, requests=requests)
    assert [round(overhead.ms(requests), 6) for requests in (1, 2, 3, 4, 8)] == [0.3, 0.3, 0.3, 0.5, 0.5]
    overhead = Overhead()
    for _ in range(FEWEST):
        overhead.add(0.9, asked=True, requests=4)
        overhead.add(0.4, asked=False, requests=4)
    assert overhead.ms(2) == 0.5, "and fewer as more did"


def test_the_first_question_in_a_busy_moment_is_not_the_last() -> None:
    """Whoever asks for more than the credit that can be saved up is never asked again, and not measured."""
    overhead = Overhead()
    overhead.add(0.2, asked=False)
    overhead.add(50.0, asked=True)
    assert overhead.ms(1) <= 4 / 3 * PRIOR_MS
    for _ in range(FEWEST - 1):
        overhead.add(0.5, asked=True)
    assert round(overhead.ms(1), 6) == 0.3


def test_a_busy_second_is_doubted_once_nobody_was_asked_for_long() -> None:
    overhead, attention = Overhead(), Attention()
    overhead.add(0.2, asked=False)
    for _ in range(WINDOW):
        overhead.add(50.0, asked=True)
    assert overhead.ms(1) > 10 * PLAIN_MS
    asked_in = []
    for number in range(8 * DOUBTED):
        asked = bool(attention.tick([1], overhead.ms(1) / PLAIN_MS))
        overhead.add(0.5 if asked else 0.2, asked=asked)
        asked_in += [number] if asked else []
    assert asked_in[0] <= 4 * DOUBTED
    assert round(overhead.ms(1), 6) == 0.3
    assert len(asked_in) > DOUBTED // 8, "and again as often as it is worth"


def test_who_is_dear_is_asked_seldom() -> None:
    overhead, attention = Overhead(), Attention()
    spent, rounds = 0.0, 40 * DOUBTED
    for _ in range(rounds):
        asked = bool(attention.tick([1], overhead.ms(1) / PLAIN_MS))
        overhead.add(0.2 + 0.8 * PLAIN_MS if asked else 0.2, asked=asked)
        spent += 0.8 * asked
    assert spent <= 0.015 * rounds
