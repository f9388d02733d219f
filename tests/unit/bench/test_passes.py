"""Which prompts are answered in which pass."""

from __future__ import annotations

import pytest

from foretoken.bench.passes import Passes
from foretoken.bench.workloads import PromptCase

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
