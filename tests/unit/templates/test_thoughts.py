"""The form of thoughts that a chat template has."""

from __future__ import annotations

from typing import Any

import pytest

import chat_templates
import thinking_cases as cases
from claude_server import TemplateTokenizer
from foredraft.engine.prompt import encode_chat
from foredraft.engine.thinking import thinking_of
from foredraft.templates.thoughts import MARKS, ThoughtForm, usual_form

THINK = ("<think>", "</think>")


def form(source: str) -> ThoughtForm | None:
    return TemplateTokenizer(source).template_traits.thought


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("qwen", ThoughtForm(*THINK, "<think>\n", "\n</think>\n\n", "reasoning_content")),
        ("deepseek", ThoughtForm(*THINK, "<think>\n", "\n</think>\n\n", "content")),
        ("glm", ThoughtForm(*THINK, "<think>", "</think>\n", "reasoning_content")),
        ("mistral", ThoughtForm("[THINK]", "[/THINK]", "[THINK]", "[/THINK]", "part")),
        ("smollm", ThoughtForm(*THINK, "<think>\n", "\n</think>\n\n", "content")),
    ],
)
def test_a_template_says_how_a_thought_is_written(name: str, expected: ThoughtForm) -> None:
    assert form(cases.TEMPLATES[name]) == expected


def test_gpt_oss_goes_on_to_its_final_channel() -> None:
    found = form(cases.GPT_OSS)
    assert found is not None
    assert found.place == "thinking"
    assert found.after == "<|end|><|start|>assistant<|channel|>final<|message|>"


@pytest.mark.parametrize("family", chat_templates.FAMILIES.values())
def test_templates_without_marks_have_no_thoughts(family: str) -> None:
    assert form(family) is None


@pytest.mark.parametrize(("opening", "closing"), MARKS[1:])
def test_marks_in_a_prompt_that_opens_the_thought(opening: str, closing: str) -> None:
    source = (
        chat_templates.CHATML + f"{{{{ '{opening}' if thinking is not defined else '{opening}{closing}' }}}}"
    )
    tokenizer = TemplateTokenizer(source)
    prompt = encode_chat(tokenizer, cases.ASKED).tokens
    thinking = thinking_of(tokenizer, prompt)
    assert thinking is not None
    assert (thinking.opening, thinking.closing, thinking.begun) == (opening, closing, True)
    assert closing in thinking.ending
    assert thinking_of(tokenizer, encode_chat(tokenizer, cases.ASKED, {"thinking": False}).tokens) is None


def test_a_question_with_a_mark_opens_nothing() -> None:
    tokenizer = TemplateTokenizer(cases.QWEN)
    asked: list[Any] = [{"role": "user", "content": "What does <think> mean?"}]
    thinking = thinking_of(tokenizer, encode_chat(tokenizer, asked).tokens)
    assert thinking is not None
    assert not thinking.begun


def test_the_usual_form_keeps_the_prompt_s_white_space() -> None:
    assert usual_form(*THINK).after == "\n</think>\n\n"
    assert usual_form(*THINK, space="").after == "</think>\n\n"
    assert usual_form("[THINK]", "[/THINK]").after == "[/THINK]"
