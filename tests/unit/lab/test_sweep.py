"""The two classic prompts, and speculation strings that are swept over draft lengths."""

from __future__ import annotations

from itertools import pairwise

import pytest

from foredraft import Engine
from foredraft.config import parse_speculation
from foredraft.errors import SpeculationStringError
from foredraft.registry import check_speculation, create_drafter
from foredraft.testing import FakeModel, drafter_context, markov_logits
from foredraft.types import SamplingParams
from lab.sweep import (
    CLOSE_ELEMENTS,
    LENGTHS,
    PLACE,
    SwitchingSide,
    classic_prompts,
    sweep_settings,
)


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


def test_a_setting_for_each_length_and_plain_decoding_for_none() -> None:
    found = sweep_settings(f"suffix:max={PLACE},min-p=0")
    assert tuple(found) == LENGTHS
    assert (LENGTHS[0], LENGTHS[-1]) == (0, 32)
    assert found[0] == "off"
    assert found[4] == "suffix:max=4,min-p=0"
    assert len(set(found.values())) == len(found)


def test_every_setting_can_be_used() -> None:
    for setting in sweep_settings(f"ngram-simple:n=3,m={PLACE}").values():
        speculation = parse_speculation(setting)
        check_speculation(speculation)
        for stage in speculation.stages:
            create_drafter(stage, drafter_context()).close()


def test_a_string_without_a_place_is_not_swept() -> None:
    with pytest.raises(SpeculationStringError, match="no place for the draft length"):
        sweep_settings("suffix:max=4")


PROMPT = [{"role": "user", "content": "abc"}]
PARAMS = SamplingParams(max_tokens=40, ignore_eos=True)


def test_settings_can_share_an_engine() -> None:
    engine = Engine(FakeModel(6, logits=markov_logits(6, order=1, scale=8.0)))
    off, drafting = SwitchingSide("off", engine), SwitchingSide("ngram-simple:n=3,m=4", engine)
    samples = [side.answer(PROMPT, PARAMS) for side in (off, drafting, off)]
    assert [sample.drafted > 0 for sample in samples] == [False, True, False]
    assert samples[0].tokens == samples[1].tokens
    drafting.close()
    assert engine.generate(PROMPT, PARAMS).tokens == samples[0].tokens
