"""Structured answers, options that change nothing, and what is refused, through the real Anthropic client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from pydantic import BaseModel

from claude_server import HERMES, LLAMA3, NOW, PLAIN, WEATHER, both, call, request, shown, talking

# --- structured answers --------------------------------------------------------------------------------


class City(BaseModel):
    """What the client asks for."""

    name: str
    large: bool


def test_an_answer_has_the_type_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    said = '{"name": "Oslo", "large": true}'
    with talking(monkeypatch, said) as (claude, _):
        parsed = claude.messages.parse(**request(tools=None, output_format=City))
        with claude.messages.stream(**request(tools=None, output_format=City)) as stream:
            streamed = stream.get_final_message()
    assert parsed.parsed_output == streamed.parsed_output == City(name="Oslo", large=True)
    assert parsed.stop_reason == "end_turn"


def test_a_schema_is_followed_whatever_the_model_would_say(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    output = {"format": {"type": "json_schema", "schema": schema}, "effort": "high"}
    with talking(monkeypatch, "no, never") as (claude, _):
        whole, streamed = both(claude, output_config=output, tool_choice={"type": "none"})
    assert shown(whole) == shown(streamed)
    assert set(json.loads(whole.content[0].text)) == {"ok"}


@pytest.mark.parametrize("template", [PLAIN, HERMES, LLAMA3])
def test_an_answer_is_a_call_or_has_the_type(monkeypatch: pytest.MonkeyPatch, template: str | None) -> None:
    said = [call("now", template), '{"name": "Oslo", "large": true}']
    with talking(monkeypatch, lambda prompt: said["now?" not in prompt], template) as (claude, _):
        asked = [{"role": "user", "content": "now?"}]
        calls = claude.messages.parse(**request(messages=asked, output_format=City))
        answers = claude.messages.parse(**request(output_format=City))
    assert shown(calls) == [("tool_use", "now", {})]
    assert calls.stop_reason == "tool_use"
    assert answers.parsed_output == City(name="Oslo", large=True)


def test_a_strict_tool_is_called_by_its_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    reply = call("get_weather", HERMES, town="Oslo")
    with talking(monkeypatch, reply) as (claude, _):
        loose, _ = both(claude, tools=[WEATHER])
        strict, streamed = both(claude, tools=[{**WEATHER, "strict": True}])
    assert shown(loose) == [("tool_use", "get_weather", {"town": "Oslo"})]
    assert shown(strict) == shown(streamed)
    assert set(strict.content[0].input) == {"city"}


# --- what is accepted, and what is refused -------------------------------------------------------------


def test_values_that_change_nothing_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    tool = {
        **NOW,
        "input_schema": {**NOW["input_schema"], "required": None},
        "type": "custom",
        "strict": False,
        "eager_input_streaming": True,
        "defer_loading": False,
        "allowed_callers": ["direct"],
    }
    options: dict[str, Any] = {
        "thinking": {"type": "disabled"},
        "service_tier": "standard_only",
        "metadata": {"user_id": "u"},
        "cache_control": {"type": "ephemeral"},
        "extra_body": {"speed": "standard"},
    }
    with talking(monkeypatch, "ok") as (claude, _):
        plain, _ = both(claude, tools=[NOW])
        whole, streamed = both(claude, tools=[tool], **options)
        assert shown(claude.messages.create(**request(tools=None, tool_choice={"type": "auto"}))) == ["ok"]
    assert shown(whole) == shown(streamed) == shown(plain)
    counts = whole.usage.input_tokens + whole.usage.cache_read_input_tokens
    assert counts == plain.usage.input_tokens + (plain.usage.cache_read_input_tokens or 0)


USE = {"type": "tool_use", "id": "a", "name": "now", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "a", "content": "12"}
TEXT = {"type": "text", "text": "so"}
SCHEMA = {"type": "json_schema", "schema": {"type": "object"}}


def history(*contents: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[at % 2], "content": each} for at, each in enumerate(contents)]}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
            "tools.0: the type 'web_search_20250305' is a tool defined by Anthropic",
        ),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools.0: the type 'bash_20250124'"),
        ({"tools": [NOW, {"name": "f"}]}, "Missing.*'tools.1.input_schema'"),
        ({"tools": [{**NOW, "name": "two words"}]}, "tools.0.name: .*pattern"),
        ({"tools": [{**NOW, "input_schema": {"type": "array"}}]}, "tools.0.input_schema: must be .* object"),
        (
            {"tools": [{**NOW, "input_schema": {"type": "object", "properties": []}}]},
            "properties is not an obj",
        ),
        ({"tools": [NOW, NOW]}, "two functions are named 'now'"),
        ({"tools": [{**NOW, "name": f"f{index}"} for index in range(129)]}, "tools: .*at most 128"),
        ({"tool_choice": {"type": "sometimes"}}, "tool_choice.type: .*'auto', 'any', 'tool' or 'none'"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice: a name is required for the type 'tool'"),
        (
            {"tool_choice": {"type": "any", "name": "now"}},
            "tool_choice: a name is required for the type 'tool'",
        ),
        ({"tool_choice": {"type": "tool", "name": "fly"}}, "'fly', which is not among the tools"),
        ({"tools": None, "tool_choice": {"type": "any"}}, "there are no tools"),
        (history([USE]), "messages.0: content block 0 has the type 'tool_use', .*'assistant'"),
        (history("x", [TEXT, RESULT]), "messages.1: content block 1 has the type 'tool_result', .*'user'"),
        (history("x", [USE]), "the last message calls tools, and no results follow"),
        (history([RESULT]), "messages.0.content.0: the message right before has no tool_use 'a'"),
        (
            history("x", [USE], [TEXT, RESULT]),
            "messages.2.content.1: the message right before has no tool_use 'a'.*before any text",
        ),
        (
            history("x", [USE], [RESULT], "y", [RESULT]),
            "messages.4.content.0: the message right before has no tool_use 'a'",
        ),
        (history("x", [{**USE, "input": "{}"}], [RESULT]), "messages.1.content.0.input: .*dict"),
        (history("x", [{**USE, "id": ""}], [RESULT]), "messages.1.content.0.id"),
        (history("x", [USE], [{**RESULT, "content": 3}]), "messages.2.content.0.content: must be text or a"),
        (history([{"type": "image", "source": {}}]), "messages.0.content.0.*source"),
        (
            history([{"type": "video"}]),
            "'video'; only 'text' and 'image' and 'thinking' and 'redacted_thinking' and 'tool_use' and",
        ),
        ({"thinking": {"type": "on"}}, "thinking: .*'disabled', 'enabled'"),
        (
            {"tools": None, "output_config": {"format": SCHEMA}, **history("x", "{")},
            "output_config.format applies to the whole answer",
        ),
        ({"tools": None, "output_config": {"format": {"type": "json_schema"}}}, "Missing.*format.schema"),
        (
            {"tools": None, "output_config": {"format": {**SCHEMA, "schema": {"type": "odd"}}}},
            "The JSON schema cannot be used",
        ),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_what_cannot_be_done_is_refused(
    talker: anthropic.Anthropic, options: dict[str, Any], message: str, stream: bool
) -> None:
    with pytest.raises(anthropic.BadRequestError, match=message) as caught:
        talker.messages.create(**request(stream=stream, **options))
    assert caught.value.type == "invalid_request_error"
    assert caught.value.body["type"] == "error"  # type: ignore[index]


@pytest.fixture(scope="module")
def talker() -> Iterator[anthropic.Anthropic]:
    """A client of a server whose model always says the same."""
    with pytest.MonkeyPatch.context() as patch, talking(patch, "ok") as (claude, _):
        yield claude
