"""Tools through the real Anthropic client, streaming and not: models that call, and what becomes of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import anthropic
import pytest

from claude_server import (
    HERMES,
    LLAMA3,
    NOW,
    PLAIN,
    QUESTION,
    TEMPLATES,
    WEATHER,
    both,
    call,
    request,
    seen,
    shown,
    talking,
)

every_template = pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)


# --- calls ---------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("long_rounds")
@every_template
def test_a_call_is_a_block(monkeypatch: pytest.MonkeyPatch, template: str | None) -> None:
    reply = call("get_weather", template, city="Oslo", days=[1, 2])
    with talking(monkeypatch, reply, template) as (claude, _):
        whole, streamed = both(claude)
        events = list(claude.messages.create(**request(stream=True)))
    assert shown(whole) == shown(streamed) == [("tool_use", "get_weather", {"city": "Oslo", "days": [1, 2]})]
    assert whole.stop_reason == streamed.stop_reason == "tool_use"
    assert whole.stop_sequence is None
    assert whole.content[0].id.startswith("toolu_")

    kinds = [event.type for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert (events[1].content_block.type, events[1].content_block.input) == ("tool_use", {})
    pieces = [event.delta.partial_json for event in events[2:-3]]
    assert len(pieces) > 3, "the input is streamed as it comes"
    assert json.loads("".join(pieces)) == {"city": "Oslo", "days": [1, 2]}


@pytest.mark.parametrize(
    ("template", "reply", "texts"),
    [
        (HERMES, "Let me look.\n{weather}\n{now}", ["Let me look.\n"]),
        (HERMES, "{weather}\nAnd now the time.\n{now}", ["\nAnd now the time.\n"]),
        (LLAMA3, "{weather}; {now}", []),
    ],
)
def test_blocks_are_numbered_in_their_order(
    monkeypatch: pytest.MonkeyPatch, template: str, reply: str, texts: list[str]
) -> None:
    weather, now = call("get_weather", template, city="Oslo"), call("now", template)
    with talking(monkeypatch, reply.replace("{weather}", weather).replace("{now}", now), template) as (
        claude,
        _,
    ):
        whole, streamed = both(claude)
        events = list(claude.messages.create(**request(stream=True)))
    assert shown(whole) == shown(streamed)
    assert [block.text for block in whole.content if block.type == "text"] == texts
    calls = [block for block in whole.content if block.type == "tool_use"]
    assert [(block.name, block.input) for block in calls] == [("get_weather", {"city": "Oslo"}), ("now", {})]
    assert calls[0].id != calls[1].id
    edges = [(e.type, e.index) for e in events if e.type in ("content_block_start", "content_block_stop")]
    expected = [
        (kind, index)
        for index in range(len(whole.content))
        for kind in ("content_block_start", "content_block_stop")
    ]
    assert edges == expected, "one block ends before the next begins"


@pytest.mark.parametrize("template", [HERMES, LLAMA3])
def test_one_call_where_only_one_is_wanted(monkeypatch: pytest.MonkeyPatch, template: str) -> None:
    between = "; " if template is LLAMA3 else "\n"
    reply = call("get_weather", template, city="Oslo") + between + call("now", template)
    with talking(monkeypatch, reply, template) as (claude, _):
        messages = both(claude, tool_choice={"type": "auto", "disable_parallel_tool_use": True})
        assert len(both(claude)[0].content) == 2
    for message in messages:
        assert shown(message) == [("tool_use", "get_weather", {"city": "Oslo"})]
        assert message.stop_reason == "tool_use"


@pytest.mark.parametrize(
    "options", [{"tools": None}, {"tool_choice": {"type": "none"}}, {"tools": [NOW]}, {"tools": []}]
)
def test_what_cannot_be_called_is_text(monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
    reply = call("get_weather", HERMES, city="Oslo")
    with talking(monkeypatch, reply) as (claude, _):
        whole, streamed = both(claude, **options)
    assert shown(whole) == shown(streamed) == [reply]
    assert whole.stop_reason == "end_turn"


def test_a_call_that_is_cut_short_ends_with_max_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    reply = call("get_weather", HERMES, city="Oslo", country="Norway")
    most = len(reply.partition("Nor")[0])
    with talking(monkeypatch, reply) as (claude, _):
        whole, streamed = both(claude, max_tokens=most)
    assert whole.stop_reason == streamed.stop_reason == "max_tokens"
    assert shown(whole) == shown(streamed) == [("tool_use", "get_weather", {"city": "Oslo"})]


def test_a_stop_sequence_after_a_call_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with talking(monkeypatch, call("now", HERMES) + "\nobservation: 12") as (claude, _):
        whole, streamed = both(claude, stop_sequences=["observation:"])
    assert shown(whole) == shown(streamed) == [("tool_use", "now", {})]
    assert (whole.stop_reason, whole.stop_sequence) == ("stop_sequence", "observation:")


@pytest.mark.parametrize("value", ["1e999", '"\\ud83d"', "[" * 300 + "]" * 300])
def test_an_input_that_no_answer_can_hold_is_said(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    reply = f'<tool_call>\n{{"name": "now", "arguments": {{"a": {value}}}}}\n</tool_call>'
    with talking(monkeypatch, reply) as (claude, _):
        with pytest.raises(anthropic.InternalServerError, match="input that cannot be parsed"):
            claude.messages.create(**request(max_tokens=1000))
        events = list(claude.messages.create(**request(max_tokens=1000, stream=True)))
    pieces = [event.delta.partial_json for event in events if event.type == "content_block_delta"]
    assert "".join(pieces) == f'{{"a": {value}}}', "a stream has it as the model wrote it"


# --- calls that must be made ---------------------------------------------------------------------------


@pytest.mark.parametrize("template", [PLAIN, LLAMA3])
@pytest.mark.parametrize(
    "choice", [{"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "get_weather"}]
)
def test_a_call_that_must_be_made_follows_its_schema(
    monkeypatch: pytest.MonkeyPatch, template: str | None, choice: dict[str, Any]
) -> None:
    """The model would say something else."""
    with talking(monkeypatch, "no " * 60, template) as (claude, _):
        whole, streamed = both(claude, tools=[WEATHER], tool_choice=choice)
    assert whole.stop_reason == "tool_use"
    assert shown(whole) == shown(streamed)
    [block] = whole.content
    assert (block.type, block.name, set(block.input)) == ("tool_use", "get_weather", {"city"})


# --- conversations -------------------------------------------------------------------------------------


def weather_reply(template: str | None) -> Callable[[str], str]:
    """Calls first; then repeats what was said last."""

    def reply(prompt: str) -> str:
        _, answered, result = prompt.rpartition("tool: " if template else "<tool_response>\n")
        if not answered:
            return call("get_weather", template, city="Oslo")
        return f"I heard {result.split('<')[0].strip()}."

    return reply


@every_template
def test_the_conversation_goes_on_with_the_result(
    monkeypatch: pytest.MonkeyPatch, template: str | None
) -> None:
    with talking(monkeypatch, weather_reply(template), template) as (claude, _):
        first = claude.messages.create(**request())
        result = {"type": "tool_result", "tool_use_id": first.content[0].id, "content": "sunny"}
        history = [
            *QUESTION,
            {"role": "assistant", "content": first.content},
            {"role": "user", "content": [result]},
        ]
        whole, streamed = both(claude, messages=history)
    assert shown(whole) == shown(streamed) == ["I heard sunny."]
    assert whole.stop_reason == "end_turn"


@pytest.mark.parametrize("stream", [True, False])
def test_the_client_s_own_loop_runs_tools(monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    asked: list[str] = []

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """The weather in a city.

        Args:
            city: Its name.
        """
        asked.append(city)
        return "sunny"

    options: dict[str, Any] = request(tools=[get_weather])
    with talking(monkeypatch, weather_reply(HERMES)) as (claude, _):
        final = claude.beta.messages.tool_runner(**options, thread=False, stream=stream).until_done()
    assert asked == ["Oslo"]
    assert [block.text for block in final.content if block.type == "text"] == ["I heard sunny."]


def test_the_prompt_of_a_long_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are messages of the role "tool", each before the user's further words."""
    ephemeral = {"type": "ephemeral", "ttl": "1h"}
    uses = [
        {"type": "tool_use", "id": "a", "name": "get_weather", "input": {"city": "Oslo"}},
        {"type": "tool_use", "id": "b", "name": "now", "input": {}, "cache_control": ephemeral},
    ]
    results = [
        {
            "type": "tool_result",
            "tool_use_id": "b",
            "content": [{"type": "text", "text": "12"}, {"type": "text", "text": "h"}],
        },
        {"type": "tool_result", "tool_use_id": "a", "content": "no such city", "is_error": True},
    ]
    messages = [
        *QUESTION,
        {"role": "assistant", "content": [{"type": "text", "text": "Wait."}, *uses]},
        {"role": "user", "content": results[:1]},
        {"role": "user", "content": [*results[1:], {"type": "text", "text": "and?"}]},
        {"role": "user", "content": "well?"},
    ]
    with talking(monkeypatch, "ok") as (claude, running):
        claude.messages.create(**request(messages=messages, system="Be brief.", tools=[NOW]))
        prompt = seen(running)
    function = {"name": "now", "parameters": NOW["input_schema"]}
    assert prompt == (
        f"tools: {json.dumps([{'type': 'function', 'function': function}])}\n"
        "system: Be brief.\n"
        "user: how is the weather in Oslo?\n"
        'assistant: Wait.<tool_call>{"name": "get_weather", "arguments": {"city": "Oslo"}}</tool_call>'
        '<tool_call>{"name": "now", "arguments": {}}</tool_call>\n'
        "tool: 12\nh\n"
        "tool: Error: no such city\n"
        "user: and?\nwell?\n"
        "assistant: "
    )


def test_a_begun_answer_goes_on_with_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    messages = [*QUESTION, {"role": "assistant", "content": "Let me"}]
    with talking(monkeypatch, "Let me look. " + call("now", HERMES)) as (claude, running):
        whole, streamed = both(claude, messages=messages)
        assert seen(running).endswith("assistant: Let me")
        assert '"get_weather"' in seen(running)
    assert shown(whole) == shown(streamed) == [" look. ", ("tool_use", "now", {})]


# --- counting and caching ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{}, {"tool_choice": {"type": "none"}}, {"tool_choice": {"type": "tool", "name": "now"}}]
)
def test_counted_tokens_have_the_tools_in_them(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    with talking(monkeypatch, call("now", HERMES)) as (claude, _):
        unused = ("max_tokens", "extra_body")
        given = {name: value for name, value in request(**options).items() if name not in unused}
        counted = claude.messages.count_tokens(**given)
        bare = claude.messages.count_tokens(model="fake", messages=QUESTION)
        spent = claude.messages.create(**request(**options)).usage
    assert counted.input_tokens == spent.input_tokens + (spent.cache_read_input_tokens or 0)
    assert (counted.input_tokens > bare.input_tokens) is (options.get("tool_choice") != {"type": "none"})


def test_marked_prefixes_are_cached_as_all_are(monkeypatch: pytest.MonkeyPatch) -> None:
    marked = [{**WEATHER, "cache_control": {"type": "ephemeral"}}]
    with talking(monkeypatch, "ok") as (claude, _):
        first = claude.messages.create(**request(tools=marked)).usage
        again = claude.messages.create(**request(tools=[WEATHER])).usage
    assert again.cache_read_input_tokens
    assert again.input_tokens + again.cache_read_input_tokens == first.input_tokens
