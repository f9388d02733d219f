"""Tool calls through the real OpenAI client: a model that writes them, and what becomes of that."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from http_server import Running, client_of, serving

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
MESSAGES: list[Any] = [{"role": "user", "content": "how is the weather in Oslo?"}]


def ask(running: Running, **options: Any) -> Any:
    given: dict[str, Any] = {"model": "fake", "messages": MESSAGES, "tools": [WEATHER], "temperature": 0}
    with client_of(running) as client:
        answer = client.chat.completions.create(**{**given, **options})
        return list(answer) if options.get("stream") else answer


@pytest.mark.usefixtures("long_rounds")
@pytest.mark.parametrize("before", ["", "Let me look. "])
def test_a_call_is_taken_out_of_the_text(before: str) -> None:
    with serving(script=before + CALL) as running:
        choice = ask(running).choices[0]
        chunks = ask(running, stream=True)
    assert choice.finish_reason == "tool_calls"
    assert (choice.message.content or "").strip() == before.strip()
    [call] = choice.message.tool_calls
    assert call.type == "function"
    assert call.id.startswith("call_")
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == {"city": "Oslo"}

    pieces = [c.delta.tool_calls[0] for chunk in chunks for c in chunk.choices if c.delta.tool_calls]
    assert pieces[0].function.name == "get_weather"
    assert len(pieces) > 3, "arguments are streamed as they come"
    assert "".join(piece.function.arguments for piece in pieces) == call.function.arguments
    text = "".join(c.delta.content or "" for chunk in chunks for c in chunk.choices)
    assert text == (choice.message.content or "")
    assert [c.finish_reason for chunk in chunks for c in chunk.choices][-1] == "tool_calls"


def test_without_tools_it_is_text() -> None:
    with serving(script=CALL) as running:
        choice = ask(running, tools=openai.NOT_GIVEN).choices[0]
        none = ask(running, tool_choice="none").choices[0]
    assert choice.message.content == none.message.content == CALL
    assert choice.finish_reason == none.finish_reason == "stop"


def test_a_function_that_was_not_offered_is_text() -> None:
    with serving(script=CALL.replace("get_weather", "launch")) as running:
        choice = ask(running).choices[0]
    assert choice.message.tool_calls is None
    assert "launch" in choice.message.content


def test_the_conversation_goes_on_with_the_result() -> None:
    with serving(script=CALL) as running:
        message = ask(running).choices[0].message
        call = message.tool_calls[0]
        result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
        history = [*MESSAGES, message.model_dump(exclude_none=True), result]
        answer = ask(running, messages=history)
    assert answer.usage.prompt_tokens > 0
    assert answer.choices[0].finish_reason == "tool_calls"


def test_tools_are_described_to_a_model_whose_template_knows_none() -> None:
    with serving(script="hello") as running:
        with_tools = ask(running).usage.prompt_tokens
        without = ask(running, tools=openai.NOT_GIVEN).usage.prompt_tokens
        assert "get_weather" in seen_prompt(running)
    assert with_tools > without


STRICT: Any = {
    "type": "function",
    "function": {
        **WEATHER["function"],  # type: ignore[dict-item]
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 8}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
NOW: Any = {"type": "function", "function": {"name": "now"}}
WRONG = CALL.replace('"Oslo"', '["Oslo"], "country": "Norway"')


@pytest.mark.parametrize("speculate", ["auto", "off"])
@pytest.mark.parametrize("before", ["", "Let me look. "])
def test_a_strict_function_s_arguments_follow_its_schema(before: str, speculate: str) -> None:
    """Also where the model would write something else; one that is not strict is the model's own."""
    options: dict[str, Any] = {"extra_body": {"speculate": speculate}, "max_tokens": 300}
    with serving(script=before + WRONG, speculate="suffix;grammar") as running:
        loose = ask(running, **options).choices[0].message
        strict = ask(running, tools=[NOW, STRICT], **options).choices[0].message
        plain = ask(running, tools=[NOW, STRICT], max_tokens=300, extra_body={"speculate": "off"})
    assert json.loads(loose.tool_calls[0].function.arguments) == {"city": ["Oslo"], "country": "Norway"}
    call = strict.tool_calls[0].function
    assert isinstance(json.loads(call.arguments)["city"], str)
    assert len(json.loads(call.arguments)) == 1
    assert (strict.content or "").startswith(before)
    twin = plain.choices[0].message
    assert (twin.content, [call.function for call in twin.tool_calls]) == (
        strict.content,
        [call.function for call in strict.tool_calls],
    )


def test_an_answer_in_words_is_free_where_functions_are_strict() -> None:
    script = 'Ça va: {"city": 3} <tool [1] 🙂\n\n'
    with serving(script=script) as running:
        choice = ask(running, tools=[STRICT]).choices[0]
    assert (choice.message.content, choice.finish_reason) == (script, "stop")


def test_one_call_at_most() -> None:
    with serving(script=f"So: {CALL}{CALL} Done.") as running:
        both = ask(running).choices[0].message
        one = ask(running, parallel_tool_calls=False).choices[0]
    assert len(both.tool_calls) == 2
    assert both.content == "So:  Done."
    assert len(one.message.tool_calls) == 1
    assert (one.message.content, one.finish_reason) == ("So: ", "tool_calls")


def test_a_choice_may_allow_some_functions_only() -> None:
    def allowed(mode: str, name: str) -> Any:
        tools = [{"type": "function", "function": {"name": name}}]
        return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}

    with serving(script=CALL) as running:
        text = ask(running, tools=[WEATHER, NOW], tool_choice=allowed("auto", "now")).choices[0].message
        call = ask(running, tools=[WEATHER, NOW], tool_choice=allowed("required", "get_weather")).choices[0]
    assert (text.content, text.tool_calls) == (CALL, None)
    assert call.message.tool_calls[0].function.name == "get_weather"


def test_a_format_is_that_of_an_answer_without_calls() -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"]}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    with serving(script=CALL) as running:
        called = ask(running, response_format=form).choices[0]
        forced = ask(running, response_format=form, tool_choice="required", parallel_tool_calls=False)
    with serving(script='{"a": 1}') as running:
        written = ask(running, response_format=form).choices[0]
    assert called.finish_reason == forced.choices[0].finish_reason == "tool_calls"
    assert (written.message.content, written.message.tool_calls) == ('{"a": 1}', None)


def seen_prompt(running: Running) -> str:
    model: Any = running.engines["fake"].model
    longest = max((rows for batch in model.forwards for rows in batch), key=lambda rows: len(rows.tokens))
    return bytes(token for token in longest.tokens if token < 256).decode()


def function(**schema: Any) -> dict[str, Any]:
    parameters = {"type": "object", **schema}
    return {"type": "function", "function": {"name": "f", "strict": True, "parameters": parameters}}


UNUSABLE = function(properties={"a": {"not": {"type": "string"}}})
HUGE = function(properties={"a": {"enum": ["x" * 70_000]}})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tools": [{"type": "function"}]}, "function is missing"),
        ({"tools": [WEATHER, WEATHER]}, "two functions are named 'get_weather'"),
        ({"tool_choice": {"type": "function", "function": {"name": "fly"}}}, "'fly'"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": openai.NOT_GIVEN, "tool_choice": "required"}, "there are no tools"),
        ({"tools": openai.NOT_GIVEN, "parallel_tool_calls": False}, "parallel_tool_calls needs tools"),
        ({"tools": [STRICT], "extra_body": {"regex": "a*"}}, "A regex cannot be combined with calls"),
        (
            {"tool_choice": "required", "extra_body": {"grammar": 'start: "a"'}},
            "A grammar cannot be combined",
        ),
        ({"tools": [UNUSABLE]}, "parameters of the function 'f' cannot be enforced"),
        ({"tools": [UNUSABLE], "tool_choice": "required"}, "parameters of the function 'f' cannot be"),
        ({"tools": [HUGE]}, "schemas of all functions together exceed 65536 bytes"),
    ],
)
def test_what_is_wrong_with_tools_is_said(options: dict[str, Any], message: str) -> None:
    with serving(script="hello") as running, pytest.raises(openai.BadRequestError, match=message):
        ask(running, **options)
