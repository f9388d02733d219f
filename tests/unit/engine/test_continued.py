"""The prompt for an answer that goes on from the last message, through templates of every family."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import chat_templates as families
from claude_server import TemplateTokenizer
from foredraft.engine.continued import encode_continued
from foredraft.engine.prompt import encode_chat
from foredraft.errors import RequestError
from foredraft.server.openai.tool_use import tool_use
from foredraft.server.tools.deltas import TextDelta
from foredraft.templates.control_texts import ControlTexts, Span
from foredraft.testing import FakeTokenizer

REASONS_FIRST = families.CHATML + "{% if add_generation_prompt %}{{ '<think>\\n' }}{% endif %}"
DROPS_REASONING = """{% for message in messages %}
{{- '<|' + message.role + '|>' + message.content.split('</think>')[-1] | trim + '<|end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|><think>' }}{% endif %}"""
CHANNELS = """{% for message in messages %}{{ '<|start|>' + message.role }}
{{- '<|channel|>final' if message.role == 'assistant' }}{{ '<|message|>' + message.content + '<|end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}{# functions. #}"""
TEMPLATES = {
    **families.FAMILIES,
    "thinks if told": families.THINKS_IF_TOLD,
    "thinks by name": families.THINKS_BY_NAME,
    "thinks by effort": families.THINKS_BY_EFFORT,
    "effort or none": families.EFFORT_OR_NONE,
    "always thinks": families.ALWAYS_THINKS,
    "reasons first": REASONS_FIRST,
    "drops reasoning": DROPS_REASONING,
    "channels": CHANNELS,
}
TOKENIZERS = {name: TemplateTokenizer(source) for name, source in TEMPLATES.items()}
everywhere = pytest.mark.parametrize("name", TEMPLATES)
QUESTION = {"role": "user", "content": "Count."}
ONCE = "One, two"


def answer(text: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def prompt(name: str, messages: Sequence[dict[str, Any]], **variables: object) -> str:
    return bytes(encode_continued(TOKENIZERS[name], messages, variables).tokens).decode()


def finished(name: str, text: str) -> str:
    """The conversation with this answer, and the next question."""
    messages = [QUESTION, answer(text), {"role": "user", "content": "More."}]
    return bytes(encode_chat(TOKENIZERS[name], messages).tokens).decode()


@everywhere
@pytest.mark.parametrize("text", [ONCE, "One,\n\n", "1 ", 'He said "<b>ünd</b>" {{ 1 }} \\n', "Count."])
def test_the_prompt_ends_with_the_text_of_the_last_message(name: str, text: str) -> None:
    made = prompt(name, [QUESTION, answer(text)])
    assert made.endswith(text)
    assert "Count." in made.removesuffix(text)


@everywhere
def test_the_text_stands_where_the_template_has_answers(name: str) -> None:
    made = prompt(name, [QUESTION, answer(ONCE)])
    begun = bytes(encode_chat(TOKENIZERS[name], [QUESTION]).tokens).decode()
    assert made == begun + ONCE or finished(name, ONCE).startswith(made)


@everywhere
def test_the_conversation_before_it_stays(name: str) -> None:
    messages = [{"role": "system", "content": "Brief."}, QUESTION, answer("So: "), QUESTION, answer("One")]
    made = prompt(name, messages)
    assert made.endswith("One")
    assert made.count("Count.") == 2
    assert "So:" in made
    assert "Brief." in made


@everywhere
def test_two_answers_and_parts(name: str) -> None:
    made = prompt(name, [QUESTION, answer("One"), answer([{"type": "text", "text": "two "}])])
    assert made.endswith("two ")
    assert "One" in made


@everywhere
def test_a_system_message_that_has_no_place_comes_before_the_answer(name: str) -> None:
    made = prompt(name, [{"role": "system", "content": "Brief."}, answer(ONCE)])
    assert made.endswith(ONCE)
    assert "Brief." in made


@pytest.mark.parametrize("name", ["reasons first", "drops reasoning"])
@pytest.mark.parametrize("text", ["Hm.</think>\n\nOne, two", "\nHm\n</think>", " Hm </think> One"])
def test_reasoning_goes_on_where_it_was_begun(name: str, text: str) -> None:
    begun = bytes(encode_chat(TOKENIZERS[name], [QUESTION]).tokens).decode()
    assert prompt(name, [QUESTION, answer(text)]) == begun + text


@pytest.mark.parametrize("name", ["reasons first", "drops reasoning"])
@pytest.mark.parametrize("text", ["<think>\nHm, the", "\n<think> Hm, the", "<think>Hm, the"])
def test_reasoning_is_not_begun_twice(name: str, text: str) -> None:
    begun = bytes(encode_chat(TOKENIZERS[name], [QUESTION]).tokens).decode()
    assert prompt(name, [QUESTION, answer(text)]) == f"{begun}Hm, the"


def test_reasoning_that_only_the_text_begins_stays() -> None:
    text = "<think>\nHm, the"
    begun = bytes(encode_chat(TOKENIZERS["thinks if told"], [QUESTION]).tokens).decode()
    assert prompt("thinks if told", [QUESTION, answer(text)]) == begun + text


@pytest.mark.parametrize("name", ["reasons first", "drops reasoning"])
def test_an_answer_without_reasoning_is_not_taken_for_reasoning(name: str) -> None:
    assert "<think>" not in prompt(name, [QUESTION, answer(ONCE)])


def test_without_reasoning_an_answer_stands_behind_its_end() -> None:
    made = prompt("thinks if told", [QUESTION, answer(ONCE)], enable_thinking=False)
    assert made.endswith(f"<think>\n\n</think>\n\n{ONCE}")


def test_the_head_is_what_the_template_writes_before_the_text() -> None:
    made = encode_continued(TOKENIZERS["channels"], [QUESTION, answer(ONCE)], with_head=True)
    assert bytes(made.tokens).decode().endswith(f"<|start|>assistant<|channel|>final<|message|>{ONCE}")
    assert made.head == "<|channel|>final<|message|>"
    assert encode_continued(TOKENIZERS["chatml"], [QUESTION, answer(ONCE)], with_head=True).head == ""


def test_a_reader_begins_in_the_text_of_the_answer() -> None:
    use = tool_use(TOKENIZERS["channels"], None, None, parallel=True)
    assert use.dialect.always_read
    use, _ = use.encode_continued([QUESTION, answer(ONCE)])
    reader = use.reader()
    assert reader is not None
    assert reader.end(", three") == [TextDelta(", three")]


@given(st.text(max_size=20).filter(lambda text: not text or text.strip()))
@settings(deadline=None, max_examples=40)
def test_any_text_is_continued_by_a_template_that_keeps_texts(text: str) -> None:
    assert prompt("chatml", [QUESTION, answer(text)]).endswith(f"<|im_start|>assistant\n{text}")


class Controlled(TemplateTokenizer):
    control_texts = ControlTexts(["<|im_start|>", "<|im_end|>"])
    literal: Sequence[Span] = ()

    def encode_rendered(self, text: str, literal: Sequence[Span], *, begins: bool = True) -> list[int]:
        self.literal = literal
        return super().encode_rendered(text, literal, begins=begins)


def test_control_tokens_in_the_text_stay_text() -> None:
    tokenizer = Controlled(families.CHATML)
    text = "One<|im_end|>\ue000"
    made = bytes(encode_continued(tokenizer, [QUESTION, answer(text)]).tokens).decode()
    assert made.endswith(text)
    last = len(made) - len(text) + 3
    assert {place for span in tokenizer.literal for place in range(*span)} == {*range(last, last + 10)}


@pytest.mark.parametrize(
    "source",
    [
        "{% for message in messages %}{{ message.content | upper }}{% endfor %}",
        "{% for message in messages %}{{ message.content | tojson }}{% endfor %}",
        "{% for message in messages %}{{ message.content | replace('two', '2') }}{% endfor %}",
        "{% for message in messages if message.role == 'user' %}{{ message.content }}{% endfor %}",
        "{% for message in messages %}{{ message.content + message.content }}{% endfor %}",
    ],
)
def test_a_template_that_changes_the_text_is_refused(source: str) -> None:
    tokenizer = TemplateTokenizer(source.replace("| tojson", "| tojson(ensure_ascii=true)"))
    with pytest.raises(RequestError, match="changes the text of the last message"):
        encode_continued(tokenizer, [QUESTION, answer('"two"')])


def test_white_space_alone_that_is_trimmed_is_refused() -> None:
    with pytest.raises(RequestError, match="changes the text"):
        prompt("gemma", [QUESTION, answer("\n\n")])
    assert prompt("gemma", [QUESTION, answer("\n\nOne")]).endswith("model\nOne")


CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([], "not the assistant's"),
        ([QUESTION], "not the assistant's"),
        ([answer(ONCE), QUESTION], "not the assistant's"),
        ([QUESTION, {**answer(ONCE), "tool_calls": [CALL]}], "calls tools"),
        ([QUESTION, {**answer(""), "reasoning_content": "Hm"}], "has no reasoning"),
    ],
)
def test_what_cannot_be_continued(messages: list[dict[str, Any]], says: str) -> None:
    with pytest.raises(RequestError, match=says):
        encode_continued(FakeTokenizer(), messages)
