"""What a model thinks, through the real clients of all three APIs: apart, handed back, bounded, counted."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import httpx
import openai
import pytest

import thinking_cases as cases
from claude_server import client_of, seen
from http_server import Running
from http_server import client_of as client
from thinking_cases import ANSWER, ASKED, TEMPLATES, THOUGHT, thinking

everywhere = pytest.mark.parametrize("name", TEMPLATES)
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 300}


def chat(running: Running, **fields: Any) -> dict[str, Any]:
    body = {"model": "fake", "messages": ASKED, **GREEDY, **fields}
    response = httpx.post(f"{running.url}/v1/chat/completions", json=body, timeout=30)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def message(running: Running, **fields: Any) -> dict[str, Any]:
    found: dict[str, Any] = chat(running, **fields)["choices"][0]["message"]
    return found


@everywhere
def test_chat(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with thinking(monkeypatch, TEMPLATES[name]) as running, client(running) as ai:
        whole = ai.chat.completions.create(model="fake", messages=ASKED, **GREEDY)
        assert whole.choices[0].message.content == ANSWER
        assert whole.choices[0].message.reasoning_content == THOUGHT
        assert whole.choices[0].finish_reason == "stop"
        details = whole.usage.completion_tokens_details
        assert len(THOUGHT) < details.reasoning_tokens < whole.usage.completion_tokens
        thought, said = "", ""
        for chunk in ai.chat.completions.create(model="fake", messages=ASKED, stream=True, **GREEDY):
            delta = chunk.choices[0].delta
            assert not (said and getattr(delta, "reasoning_content", None))
            thought += getattr(delta, "reasoning_content", None) or ""
            said += delta.content or ""
        assert (thought, said) == (THOUGHT, ANSWER)


@everywhere
@pytest.mark.parametrize("summary", [None, "auto"])
def test_responses(monkeypatch: pytest.MonkeyPatch, name: str, summary: Any) -> None:
    reasoning: Any = {"summary": summary}
    with thinking(monkeypatch, TEMPLATES[name]) as running, client(running) as ai:
        asked: Any = {"model": "fake", "input": "How many?", "temperature": 0, "reasoning": reasoning}
        whole = ai.responses.create(**asked)
        thought, answer = whole.output
        parts = thought.summary if summary else thought.content
        assert (thought.type, [part.text for part in parts]) == ("reasoning", [THOUGHT])
        assert whole.output_text == ANSWER
        assert whole.usage.output_tokens_details.reasoning_tokens > len(THOUGHT)
        with ai.responses.stream(**asked) as stream:
            events: list[Any] = list(stream)
            final = stream.get_final_response()
        kind = "response.reasoning_summary_text.delta" if summary else "response.reasoning_text.delta"
        assert "".join(event.delta for event in events if event.type == kind) == THOUGHT
        assert [item.type for item in final.output] == ["reasoning", "message"]
        assert final.output_text == ANSWER
        assert [event.sequence_number for event in events if hasattr(event, "sequence_number")]
        earlier: list[Any] = [*ASKED, *(item.to_dict() for item in whole.output), *ASKED]
        again = ai.responses.create(model="fake", input=earlier, temperature=0)
        assert again.output_text == ANSWER
        assert answer.type == "message"


@everywhere
def test_messages(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    asked: Any = {"model": "fake", "messages": ASKED, "max_tokens": 300, "extra_body": {"temperature": 0}}
    with thinking(monkeypatch, TEMPLATES[name]) as running, client_of(running) as claude:
        whole = claude.messages.create(**asked)
        assert [block.type for block in whole.content] == ["thinking", "text"]
        assert isinstance(whole.content[0], anthropic.types.ThinkingBlock)
        assert whole.content[0].thinking == THOUGHT
        assert whole.content[0].signature
        assert whole.usage.output_tokens_details is not None
        assert whole.usage.output_tokens_details.thinking_tokens > len(THOUGHT)
        with claude.messages.stream(**asked) as stream:
            streamed = stream.get_final_message()
        assert [it.to_dict() for it in streamed.content] == [it.to_dict() for it in whole.content]
        asked["thinking"] = {"type": "enabled", "budget_tokens": 1024, "display": "omitted"}
        hidden = claude.messages.create(**asked).content
        assert isinstance(hidden[0], anthropic.types.ThinkingBlock)
        assert hidden[0].thinking == ""
        assert THOUGHT not in hidden[0].signature
        history = [*ASKED, {"role": "assistant", "content": whole.content},
                   {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]},
                   {"role": "user", "content": "And now?"}]  # fmt: skip
        again = claude.messages.create(**{**asked, "messages": history})
        assert again.content[-1] == whole.content[-1]


BUDGETS: list[dict[str, Any]] = [
    {"reasoning_budget": 9},
    {"reasoning_budget_tokens": 9},
    {"thinking_budget_tokens": 9},
    {"thinking_token_budget": 9},
    {"thinking_budget": 9},
    {"thinking": {"type": "enabled", "budget_tokens": 9}},
]


@everywhere
def test_a_budget_ends_the_thought(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with thinking(monkeypatch, TEMPLATES[name]) as running, client_of(running) as claude:
        for fields in BUDGETS:
            found = message(running, **fields)
            assert THOUGHT.startswith(found["reasoning_content"])
            assert 7 <= len(found["reasoning_content"]) <= 9  # the white space around it counts, too
            assert found["content"] == ANSWER
        assert message(running, reasoning_budget=-1)["reasoning_content"] == THOUGHT
        assert "reasoning_content" not in message(running, reasoning_budget=0)
        budget: Any = {"type": "enabled", "budget_tokens": 9}
        said = claude.messages.create(model="fake", messages=ASKED, max_tokens=300, thinking=budget)
        assert said.content[0].type == "thinking"
        assert len(said.content[0].thinking) <= 9


def test_a_budget_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    from foredraft.server.settings import SamplingDefaults

    defaults = SamplingDefaults(reasoning_budget=9)
    with thinking(monkeypatch, cases.DEEPSEEK, sampling=defaults) as running:
        assert message(running)["reasoning_content"] == THOUGHT[:9]
        assert message(running, reasoning_budget=3)["reasoning_content"] == THOUGHT[:3]
        assert message(running, reasoning_budget=None)["reasoning_content"] == THOUGHT[:9]
        for unlimited in ("reasoning_budget", "thinking_budget_tokens"):
            assert message(running, **{unlimited: -1})["reasoning_content"] == THOUGHT
        with client(running) as ai:
            asked: Any = {"model": "fake", "input": "How many?", "temperature": 0}
            for budget, expected in ((None, THOUGHT[:9]), (-1, THOUGHT)):
                response = ai.responses.create(**asked, extra_body={"reasoning_budget": budget})
                assert response.output[0].content[0].text == expected


def test_wrong_budgets(monkeypatch: pytest.MonkeyPatch) -> None:
    with thinking(monkeypatch, cases.DEEPSEEK) as running:
        for wrong in (
            {"reasoning_budget": -2},
            {"reasoning_budget": "many"},
            {"reasoning_budget": 5, "thinking": {"type": "enabled", "budget_tokens": 6}},
            {"reasoning_budget": 5, "thinking_budget": 6},
        ):
            body = {"model": "fake", "messages": ASKED, **wrong}
            response = httpx.post(f"{running.url}/v1/chat/completions", json=body, timeout=30)
            assert response.status_code in (400, 422)
            if wrong == {"reasoning_budget": -2}:
                assert "at least 0, or -1 for no limit" in response.text


@everywhere
def test_stop_strings_count_in_the_answer_only(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with thinking(monkeypatch, TEMPLATES[name]) as running:
        found = message(running, stop=["two", "<th", "ur"])
        assert found["reasoning_content"] == THOUGHT
        assert found["content"] == "Fo"


@pytest.mark.parametrize("name", ["deepseek"])
def test_a_format_applies_behind_the_thought(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with thinking(monkeypatch, TEMPLATES[name]) as running:
        found = message(running, regex="[A-Z][0-9]{2}")
        assert found["reasoning_content"] == THOUGHT
        assert found["content"][0] == ANSWER[0]
        assert found["content"][1:].isdigit()
        found = message(running, response_format={"type": "json_object"}, reasoning_budget=12, max_tokens=90)
        assert found["reasoning_content"] == THOUGHT[:12]
        assert found["content"].startswith("{")


@pytest.mark.parametrize("name", ["qwen", "glm", "smollm"])
def test_tokens_that_spell_the_mark_are_the_answer_under_a_constraint(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The engine is the one who judges: no byte of a mark is the token that opens a thought."""
    with thinking(monkeypatch, TEMPLATES[name]) as running, client(running) as ai:
        assert message(running)["reasoning_content"] == THOUGHT
        whole = chat(running, regex="(?s:.*)")
        said = whole["choices"][0]["message"]
        assert "reasoning_content" not in said
        assert said["content"].startswith("<think>")
        assert said["content"].endswith(ANSWER)
        assert whole["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0
        asked: Any = {"model": "fake", "messages": ASKED, "extra_body": {"regex": "(?s:.*)"}, **GREEDY}
        chunks = list(ai.chat.completions.create(**asked, stream=True))
        assert not any(getattr(chunk.choices[0].delta, "reasoning_content", None) for chunk in chunks)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == said["content"]
        stopped = message(running, regex="(?s:.*)", stop=["two"])
        assert THOUGHT.index("two") + len("<think>") <= len(stopped["content"]) < len(said["content"])
        budgeted = message(running, regex="(?s:.*)", reasoning_budget=3)
        assert budgeted == said


MARKED: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"const": "<|end|><|channel|>analysis<|message|></think>b"}},
    "required": ["a"],
    "additionalProperties": False,
}


@everywhere
def test_marks_within_json_are_its_text(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """In all three APIs, also where answers of the model have structure."""
    expected = {"a": MARKED["properties"]["a"]["const"]}
    with (
        thinking(monkeypatch, TEMPLATES[name]) as running,
        client(running) as ai,
        client_of(running) as claude,
    ):
        form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": MARKED, "strict": True}}
        assert json.loads(message(running, response_format=form)["content"]) == expected
        text: Any = {"format": {"type": "json_schema", "name": "x", "schema": MARKED, "strict": True}}
        with ai.responses.stream(model="fake", input="How many?", temperature=0, text=text) as stream:
            pieces = [event.delta for event in stream if event.type == "response.output_text.delta"]
        assert json.loads("".join(pieces)) == expected
        config: Any = {"format": {"type": "json_schema", "schema": MARKED}}
        said = claude.messages.create(model="fake", messages=ASKED, max_tokens=300, output_config=config)
        assert json.loads(said.content[-1].text) == expected  # type: ignore[union-attr]


def test_an_answer_that_does_not_think_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    with thinking(monkeypatch, cases.QWEN) as running:
        found = chat(running, chat_template_kwargs={"enable_thinking": False})
        assert seen(running).endswith("<think>\n\n</think>\n\n")
        assert "reasoning_content" not in found["choices"][0]["message"]
        assert found["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0


EARLIER = [
    *ASKED,
    {"role": "assistant", "content": "Four.", "reasoning_content": "It was a thought."},
    {"role": "user", "content": "Sure?"},
]


@pytest.mark.parametrize(
    ("name", "kept"),
    [(name, name in ("glm", "mistral")) for name in TEMPLATES],
)
def test_earlier_thoughts_are_the_template_s(monkeypatch: pytest.MonkeyPatch, name: str, kept: bool) -> None:
    with thinking(monkeypatch, TEMPLATES[name]) as running:
        message(running, messages=EARLIER)
        assert ("It was a thought." in seen(running)) is kept
        assert "Four." in seen(running)
        other = [
            {**it, "reasoning": it["reasoning_content"]} if "reasoning_content" in it else it
            for it in EARLIER
        ]
        message(running, messages=[{k: v for k, v in it.items() if k != "reasoning_content"} for it in other])
        assert ("It was a thought." in seen(running)) is kept


CALLING: list[Any] = [
    *ASKED,
    {
        "role": "assistant",
        "content": None,
        "reasoning": "I must count.",
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "count", "arguments": "{}"}}
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "4"},
]
TOOLS = [{"type": "function", "function": {"name": "count", "parameters": {"type": "object"}}}]


def test_thoughts_between_calls_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    with thinking(monkeypatch, cases.QWEN) as running:
        message(running, messages=CALLING, tools=TOOLS)
        assert "<think>\nI must count.\n</think>" in seen(running)


def test_a_call_follows_the_thought(monkeypatch: pytest.MonkeyPatch) -> None:
    call = '<tool_call>\n{"name": "count", "arguments": {"n": 2}}\n</tool_call>'
    with thinking(monkeypatch, cases.QWEN, answer=call) as running, client_of(running) as claude:
        found = message(running, tools=TOOLS)
        assert found["reasoning_content"] == THOUGHT
        assert found["tool_calls"][0]["function"] == {"name": "count", "arguments": '{"n": 2}'}
        assert not found["content"]
        tool: Any = {"name": "count", "input_schema": {"type": "object"}}
        said = claude.messages.create(model="fake", messages=ASKED, max_tokens=300, tools=[tool])
        assert [block.type for block in said.content] == ["thinking", "tool_use"]
        assert said.stop_reason == "tool_use"


OPENED = cases.QWEN.replace(
    "{{ '<|im_start|>assistant\\n' }}\n{%- if enable",
    "{{ '<|im_start|>assistant\\n<think>\\n' }}\n{%- if enable",
)


def test_a_forced_call_follows_a_thought_that_the_prompt_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    assert OPENED != cases.QWEN
    with thinking(monkeypatch, OPENED, answer='<tool_call>\n{"name": "count", "arguments": {}}') as running:
        found = message(running, tools=TOOLS, tool_choice="required")
        assert found["reasoning_content"] == THOUGHT
        assert found["tool_calls"][0]["function"]["name"] == "count"


def test_origins_fit_the_thought_and_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    with thinking(monkeypatch, cases.QWEN, speculate="suffix") as running, client(running) as ai:
        for _ in range(2):
            found = {"reasoning_content": 0, "content": 0}
            said: Any = {"stream_options": {"include_origins": True}}
            for chunk in ai.chat.completions.create(
                model="fake", messages=ASKED, stream=True, extra_body=said, **GREEDY
            ):  # fmt: skip
                for choice in chunk.choices:
                    for name in found:
                        text = getattr(choice.delta, name, None)
                        if text:
                            assert sum(count for _, count in choice.origins) == len(text)
                            found[name] += len(text)
            assert found == {"reasoning_content": len(THOUGHT), "content": len(ANSWER)}


def test_a_thought_that_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    with thinking(monkeypatch, cases.QWEN) as running, client(running) as ai, client_of(running) as claude:
        found = chat(running, max_tokens=20)["choices"][0]
        assert THOUGHT.startswith(found["message"]["reasoning_content"])
        assert (found["message"]["content"], found["finish_reason"]) == ("", "length")
        response = ai.responses.create(model="fake", input="How many?", max_output_tokens=20)
        assert [item.type for item in response.output] == ["reasoning"]
        assert response.status == "incomplete"
        said = claude.messages.create(model="fake", messages=ASKED, max_tokens=20)
        assert [block.type for block in said.content] == ["thinking"]
        assert said.stop_reason == "max_tokens"


@everywhere
@pytest.mark.parametrize("most", [12, 13, 30, 47, 60, 75])
def test_what_was_cut_off_goes_on(monkeypatch: pytest.MonkeyPatch, name: str, most: int) -> None:
    """Within the thought, also one that the prompt opened; behind it, and within the answer."""
    with thinking(monkeypatch, TEMPLATES[name], answer="Four, I think.") as running:
        first = chat(running, max_tokens=most)["choices"][0]["message"]
        begun = [*ASKED, {"role": "assistant", **first}]
        if first["content"] or first.get("reasoning_content"):
            rest = message(running, messages=begun, continue_final_message=True)
            thought = first.get("reasoning_content", "") + rest.get("reasoning_content", "")
            assert thought.rstrip("\n") == THOUGHT  # what may be the ending's line break is kept when cut
            assert first["content"] + rest["content"] == "Four, I think."


def test_anthropic_s_thought_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with thinking(monkeypatch, cases.DEEPSEEK) as running, client_of(running) as claude:
        asked: Any = {"model": "fake", "messages": ASKED}
        first = claude.messages.create(**asked, max_tokens=10).content
        again = [*ASKED, {"role": "assistant", "content": first}]
        rest = claude.messages.create(model="fake", messages=again, max_tokens=300).content
        assert [block.type for block in rest] == ["thinking", "text"]
        assert first[0].thinking + rest[0].thinking == THOUGHT  # type: ignore[union-attr]


def test_a_thought_does_not_go_on_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = [*ASKED, {"role": "assistant", "content": "", "reasoning_content": "Two"}]
    with thinking(monkeypatch, cases.QWEN) as running:
        body = {"model": "fake", "messages": begun, "continue_final_message": True, "enable_thinking": False}
        refused = httpx.post(f"{running.url}/v1/chat/completions", json=body, timeout=30)
        assert refused.status_code == 400
        assert "turns it off" in refused.text


def test_openai_s_type_of_the_items(monkeypatch: pytest.MonkeyPatch) -> None:
    with thinking(monkeypatch, cases.GLM) as running, client(running) as ai:
        response = ai.responses.create(model="fake", input="How many?", temperature=0)
        assert isinstance(response.output[0], openai.types.responses.ResponseReasoningItem)
        assert response.output[0].status == "completed"
