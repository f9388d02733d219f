"""The two classic prompts, and speculation strings that are swept over draft lengths."""

from __future__ import annotations

from itertools import pairwise

import pytest

from foredraft.bench.classic import (
    CLOSE_ELEMENTS,
    DEFAULT_SWEEPS,
    LENGTHS,
    PLACE,
    classic_prompts,
    sweep_points,
)
from foredraft.config import parse_speculation
from foredraft.errors import SpeculationStringError
from foredraft.registry import check_speculation, create_drafter
from foredraft.testing import drafter_context


def test_the_prompts_are_a_function_and_a_word_problem() -> None:
    code, word_problem = classic_prompts()
    assert (code.category, word_problem.category) == ("code", "math")
    assert "def has_close_elements(" in code.turns[0]
    assert "gold coins" in word_problem.turns[0]
    assert "apples" in word_problem.turns[0]
    assert "\n" not in word_problem.turns[0]


def test_the_examples_in_the_function_are_right() -> None:
    """They are ours, so somebody has to check them."""

    def has_close_elements(numbers: list[float], threshold: float) -> bool:
        ordered = sorted(numbers)
        return any(b - a < threshold for a, b in pairwise(ordered))

    lines = [line.strip() for line in CLOSE_ELEMENTS.splitlines()]
    examples = [(line.removeprefix(">>> "), lines[i + 1]) for i, line in enumerate(lines) if ">>>" in line]
    assert len(examples) == 2
    for call, expected in examples:
        assert str(eval(call, {"has_close_elements": has_close_elements})) == expected


def test_a_point_for_each_length_and_plain_decoding_for_none() -> None:
    points = sweep_points(f"suffix:max={PLACE},min-p=0")
    assert [point.length for point in points] == list(LENGTHS)
    assert (LENGTHS[0], LENGTHS[-1]) == (0, 32)
    assert points[0].setting == "off"
    assert points[4].setting == "suffix:max=4,min-p=0"
    assert len({point.setting for point in points}) == len(points)


@pytest.mark.parametrize("template", [text for text in DEFAULT_SWEEPS if PLACE in text])
def test_every_point_of_the_defaults_can_be_used(template: str) -> None:
    for point in sweep_points(template):
        speculation = parse_speculation(point.setting)
        check_speculation(speculation)
        for stage in speculation.stages:
            create_drafter(stage, drafter_context()).close()


def test_a_string_without_a_place_is_not_swept() -> None:
    with pytest.raises(SpeculationStringError, match="no place for the draft length"):
        sweep_points("suffix:max=4")
