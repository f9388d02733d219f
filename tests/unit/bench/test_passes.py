"""Which prompts are answered in which pass."""

from __future__ import annotations

from itertools import cycle
from random import Random
from statistics import fmean, median, pstdev

import pytest

from foredraft.bench.passes import FEWEST, MOST, MOST_SLOW, Passes, standard_error
from foredraft.bench.workloads import PromptCase

CASES = [PromptCase(name, "chat", (name,)) for name in ("long", "ten", "forty")]


def names(passes: Passes, tokens: dict[str, int]) -> list[list[str]]:
    """The cases of each pass, all of which have answers of so many tokens."""
    found = []
    for cases in passes:
        found.append([case.id for case in cases])
        for case in cases:
            passes.answered(case, tokens[case.id])
    return found


def test_short_answers_are_measured_as_long_as_others() -> None:
    tokens = {"long": 256, "ten": 10, "forty": 40}
    found = names(Passes(CASES, 2, enough=50), tokens)
    everyone, both, ten = ["long", "ten", "forty"], ["ten", "forty"], ["ten"]
    assert found == [everyone, everyone, both, *[ten] * 7]  # 2 × 50 tokens: 3 × 40, 10 × 10


@pytest.mark.parametrize("repeat", [1, 3])
def test_without_short_answers_there_are_as_many_passes_as_were_asked_for(repeat: int) -> None:
    tokens = {"long": 256, "ten": 10, "forty": 40}
    assert names(Passes(CASES, repeat), tokens) == [["long", "ten", "forty"]] * repeat
    assert names(Passes(CASES, repeat, enough=10), tokens) == [["long", "ten", "forty"]] * repeat


def test_answers_that_have_no_rate_need_no_further_passes() -> None:
    assert names(Passes(CASES, 1, enough=6), {"long": 6, "ten": 3, "forty": 1}) == [["long", "ten", "forty"]]


def test_of_several_turns_the_shortest_counts() -> None:
    passes = Passes(CASES[:1], 1, enough=64)
    seen = 0
    for cases in passes:
        seen += 1
        for tokens in (64, 16):
            passes.answered(cases[0], tokens)
    assert seen == 4


def test_how_much_there_is_to_do_is_known_as_soon_as_answers_are() -> None:
    passes = Passes(CASES, 2, enough=50)
    assert passes.count == 6
    passes.answered(CASES[1], 10)
    assert passes.count == 2 + 10 + 2
    passes.answered(CASES[2], 40)
    assert passes.count == 2 + 10 + 3


def test_what_came_out_slower_is_measured_until_it_is_known_by_how_much() -> None:
    passes, speedups = Passes(CASES, 2, enough=100), {"long": 1.4, "forty": 0.97}
    seen: list[list[str]] = []
    noise = cycle([0.97, 1.02])
    for cases in passes:
        seen.append([case.id for case in cases])
        for case in cases:
            passes.answered(case, 100)
            passes.compared(case, case.id, next(noise) if case.id == "ten" else speedups[case.id])
    everyone = ["long", "ten", "forty"]
    assert seen[:4] == [everyone, everyone, ["ten", "forty"], ["ten", "forty"]]
    assert set(map(tuple, seen[4:])) == {("ten",)}  # the other one is 0.97 whenever it is asked
    assert len(seen) == MOST * 2  # it never settles
    assert passes.count == 2 + 16 + 4


def test_what_may_be_the_worst_is_measured_longer() -> None:
    for noise, most in ([0.98, 1.01], MOST), ([0.95, 1.0], MOST_SLOW):
        passes, seen, speedups = Passes(CASES[:1], 2, enough=64), 0, cycle(noise)
        for cases in passes:
            seen += 1
            passes.answered(cases[0], 64)
            passes.compared(cases[0], "first", next(speedups))
        assert seen == most * 2


def test_a_slow_turn_has_its_case_measured_again_whatever_the_others_say() -> None:
    passes, seen = Passes(CASES[:1], 2, enough=64), 0
    for cases in passes:
        seen += 1
        for turn, speedup in enumerate((1.2, 0.9)):
            passes.answered(cases[0], 64)
            passes.compared(cases[0], str(turn), speedup)
    assert seen == FEWEST


def test_a_quick_look_stays_one() -> None:
    passes, seen = Passes(CASES[:1], 1, enough=64), 0
    for cases in passes:
        seen += 1
        passes.answered(cases[0], 64)
        passes.compared(cases[0], "first", 0.9)
    assert seen == 1


def test_the_standard_error_of_a_median_is_how_much_medians_differ() -> None:
    chance = Random(1)
    medians = [median(chance.gauss(1.0, 0.03) for _ in range(25)) for _ in range(2000)]
    found = [standard_error([chance.gauss(1.0, 0.03) for _ in range(25)]) for _ in range(2000)]
    assert pstdev(medians) < fmean(found) < 1.25 * pstdev(medians)
    assert standard_error([0.9, 0.9, 0.9]) == float("inf")
    assert standard_error([0.9] * 4) == 0.0
