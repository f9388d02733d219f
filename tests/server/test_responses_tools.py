"""Functions and formats in OpenAI's Responses API, through the real client: what a model writes, and what
becomes of that.
"""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from foredraft.images import EncodedPrompt
from foredraft.server.auth import hash_key
from foredraft.server.settings import KeySettings, ServerSettings
from http_server import Running, client_of, serving

LOGPROBS = "message.output_text.logprobs"
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a city.",
    "parameters": CITY,
    "strict": False,
}
NOW: dict[str, Any] = {
    "type": "function",
    "name": "now",
    "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
    "strict": False,
}
STRICT = {**WEATHER, "strict": True}
QUESTION = {"role": "user", "content": "how is the weather in Oslo?"}


class Weather(BaseModel):
    """What `parse` and `stream` are to make of an answer."""

    city: str


def call(arguments: str = '{"city": "Oslo"}', name: str = "get_weather") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def given(**options: Any) -> dict[str, Any]:
    body = {"model": "fake", "input": [QUESTION], "tools": [WEATHER], "temperature": 0, **options}
    return {name: value for name, value in body.items() if value is not None}


def ask(running: Running, **options: Any) -> Any:
    with client_of(running) as client:
        answer = client.responses.create(**given(**options))
        return list(answer) if options.get("stream") else answer


def written(answer: Any) -> list[tuple[str, ...]]:
    """The items of an answer: texts, and calls with their arguments."""
    return [
        ("text", item.content[0].text) if item.type == "message" else (item.name, item.arguments)
        for item in answer.output
    ]


# --- calls in the output -------------------------------------------------------------------------------

OSLO, BONN = ("get_weather", '{"city": "Oslo"}'), ("get_weather", '{"city": "Bonn"}')


@pytest.mark.parametrize(
    ("script", "items"),
    [
        (call(), [OSLO]),
        (f"Let me look. {call()}", [("text", "Let me look. "), OSLO]),
        (f"{call()}\n{call(BONN[1])}", [OSLO, BONN]),
        (f"One: {call()} two: {call(BONN[1])}", [("text", "One: "), OSLO, ("text", " two: "), BONN]),
        (f"{call()} That was it.", [OSLO, ("text", " That was it.")]),
        (call(name="launch"), [("text", call(name="launch"))]),
        ("Just words.", [("text", "Just words.")]),
    ],
)
def test_items_come_in_the_order_in_which_they_were_written(
    script: str, items: list[tuple[str, ...]]
) -> None:
    with serving(script=script) as running:
        answer = ask(running)
        events = ask(running, stream=True)
    assert written(answer) == items
    assert answer.status == "completed"
    assert {item.status for item in answer.output} == {"completed"}
    calls = [item for item in answer.output if item.type == "function_call"]
    assert all(item.call_id.startswith("call_") and item.id.startswith("fc_") for item in calls)
    assert len({item.id for item in answer.output} | {item.call_id for item in calls}) == len(items) + len(
        calls
    )
    check_stream(events, items)


def check_stream(events: list[Any], items: list[tuple[str, ...]]) -> None:
    """The events describe these items: each is added, written and done before the next, at its own place."""
    assert [event.sequence_number for event in events] == list(range(len(events)))
    final = events[-1].response
    assert written(final) == items
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    for index, (kind, whole) in enumerate(items):
        own = [event for event in events if getattr(event, "output_index", None) == index]
        places = [events.index(event) for event in own]
        assert places == list(range(places[0], places[0] + len(own)))
        shown = final.output[index]
        assert {getattr(event, "item_id", shown.id) for event in own} == {shown.id}
        assert (own[0].type, own[0].item.id) == ("response.output_item.added", shown.id)
        assert (own[-1].type, own[-1].item) == ("response.output_item.done", shown)
        name = "output_text" if kind == "text" else "function_call_arguments"
        deltas = [event.delta for event in own if event.type == f"response.{name}.delta"]
        assert "".join(deltas) == whole
        assert len(deltas) > 2, "it is streamed as it comes"
        [done] = [event for event in own if event.type == f"response.{name}.done"]
        assert (done.text if kind == "text" else done.arguments) == whole
        if kind != "text":
            assert (own[0].item.arguments, own[0].item.call_id) == ("", shown.call_id)


@pytest.mark.parametrize("script", [f"Well. {call()}", call(), "No."])
def test_everything_that_clients_require_is_there(script: str) -> None:
    form = {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}}
    with serving(script=script) as running:
        url = f"{running.url}/v1/responses"
        plain = httpx.post(url, json=given()).json()
        Response.model_validate(plain, strict=True)
        forced = httpx.post(url, json=given(tool_choice="required", tools=[NOW], text=form)).json()
        Response.model_validate(forced, strict=True)
        reply = httpx.post(url, json=given(stream=True))
    for block in reply.text.strip().split("\n\n"):
        name, data = block.split("\n")
        event = EVENT.validate_json(data.removeprefix("data: "), strict=True)
        assert event.type == name.removeprefix("event: ")
    assert plain["tools"] == [WEATHER]
    assert forced["tools"] == [NOW]
    assert forced["text"]["format"] == form["format"]


def test_the_client_s_own_helpers_read_calls() -> None:
    tool = openai.pydantic_function_tool(Weather, name="get_weather")["function"]
    flat: Any = {"type": "function", **tool}
    with serving(script=f"Hm. {call()}") as running, client_of(running) as client:
        options = given(tools=[flat])
        parsed = client.responses.parse(**options)
        with client.responses.stream(**options) as stream:
            snapshots = [
                event.snapshot for event in stream if event.type == "response.function_call_arguments.delta"
            ]
            final = stream.get_final_response()
    for answer in (parsed, final):
        message, made = answer.output
        assert message.type == "message"
        assert made.type == "function_call"
        assert made.parsed_arguments == {"city": "Oslo"}
    assert snapshots[-1] == '{"city": "Oslo"}'


def test_a_call_that_was_cut_is_incomplete() -> None:
    with serving(script=call()) as running:
        cut = ask(running, max_output_tokens=50)
        events = ask(running, max_output_tokens=50, stream=True)
        whole = ask(running, max_output_tokens=len(call()) - 3)
    for answer in (cut, events[-1].response):
        assert answer.status == answer.output[0].status == "incomplete"
        assert answer.output[0].arguments == '{"city": '[: len(answer.output[0].arguments)]
    assert events[-2].type == "response.output_item.done"
    assert (whole.status, whole.output[0].status) == ("incomplete", "completed")
    assert whole.output[0].arguments == OSLO[1]


def test_log_probabilities_are_those_of_the_text() -> None:
    script = f"Well. {call()} So."
    with serving(script=script) as running:
        before, _, after = ask(running, include=[LOGPROBS]).output
        events = ask(running, include=[LOGPROBS], stream=True)
        plain = ask(running, include=[LOGPROBS], tools=None).output[0]
    entries = before.content[0].logprobs
    assert "".join(entry.token for entry in entries) == before.content[0].text == "Well. "
    assert "".join(entry.token for entry in after.content[0].logprobs) in after.content[0].text
    assert entries == plain.content[0].logprobs[: len(entries)]
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert [e.token for event in deltas for e in event.logprobs][: len(entries)] == [e.token for e in entries]


# --- the conversation ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dumped", [True, False])
@pytest.mark.parametrize("last", ["", " There."])
def test_the_conversation_goes_on_with_the_results(
    dumped: bool, last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts: list[str] = []

    def seeing(prompt: EncodedPrompt, *rest: Any, **options: Any) -> int:
        prompts.append(bytes(prompt.tokens).decode())
        return add(prompt, *rest, **options)

    with serving(script=f"Look. {call()}{call(BONN[1])}{last}") as running, client_of(running) as client:
        first = client.responses.parse(**given())
        calls = [item for item in first.output if item.type == "function_call"]
        results = [
            {"type": "function_call_output", "call_id": item.call_id, "output": output}
            for item, output in zip(calls, ["sunny", [{"type": "input_text", "text": "rain"}]], strict=True)
        ]
        back = [item.model_dump() for item in first.output] if dumped else first.output
        add = running.engines["fake"].add
        monkeypatch.setattr(running.engines["fake"], "add", seeing)
        ask(running, input=[QUESTION, *back, *results], tools=None)
        client.chat.completions.create(
            model="fake",
            temperature=0,
            messages=[
                {"role": "user", "content": QUESTION["content"]},
                {
                    "role": "assistant",
                    "content": first.output_text,
                    "tool_calls": [
                        {
                            "id": item.call_id,
                            "type": "function",
                            "function": {"name": item.name, "arguments": item.arguments},
                        }
                        for item in calls
                    ],
                },
                {"role": "tool", "tool_call_id": calls[0].call_id, "content": "sunny"},
                {"role": "tool", "tool_call_id": calls[1].call_id, "content": "rain"},
            ],
        )
    assert "<tool_response>\nsunny\n</tool_response>" in prompts[0]
    assert prompts[0] == prompts[1]


# --- choosing ------------------------------------------------------------------------------------------


def test_tools_that_may_not_be_called_are_text() -> None:
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "now"}]}
    both = [WEATHER, NOW]
    with serving(script=call()) as running:
        assert written(ask(running, tool_choice="none")) == [("text", call())]
        assert written(ask(running, tools=None)) == [("text", call())]
        answer = ask(running, tools=both, tool_choice=allowed)
        assert written(answer) == [("text", call())]
        assert written(ask(running, tools=both)) == [OSLO]
    assert answer.tool_choice.to_dict() == allowed


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        {"type": "function", "name": "get_weather"},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_weather"}]},
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_must_be_made_is_made(choice: Any, stream: bool) -> None:
    """By a model that writes nothing but noise."""
    with serving(end=5.0) as running:
        answer = ask(
            running, tools=[NOW, WEATHER], tool_choice=choice, parallel_tool_calls=False, stream=stream
        )
    [made] = (answer[-1].response if stream else answer).output
    assert made.type == "function_call"
    if choice == "required":
        assert made.name in ("now", "get_weather")
    else:
        assert (made.name, set(json.loads(made.arguments))) == ("get_weather", {"city"})


# --- strict functions, and one call at most --------------------------------------------------------------

WRONG = call('{"city": 7, "country": "Norway"}')
FOLLOWED = ("get_weather", json.loads)


@pytest.mark.parametrize("speculate", ["off", "auto"])
@pytest.mark.parametrize("prefix", ["", "Sure! "])
def test_a_strict_function_s_arguments_follow_its_schema(prefix: str, speculate: str) -> None:
    """Also where the model would write something else, and only from where it calls."""
    with serving(script=prefix + WRONG, speculate="suffix;grammar") as running:
        loose = ask(running, extra_body={"speculate": speculate}, max_output_tokens=400)
        answer = ask(running, tools=[STRICT], extra_body={"speculate": speculate}, max_output_tokens=400)
        off = ask(running, tools=[STRICT], extra_body={"speculate": "off"}, max_output_tokens=400)
    assert written(loose)[-1] == ("get_weather", '{"city": 7, "country": "Norway"}')
    assert answer.output_text.startswith(prefix)
    made = next(item for item in answer.output if item.type == "function_call")
    arguments = json.loads(made.arguments)
    assert isinstance(arguments["city"], str)
    assert set(arguments) == {"city"}
    assert written(answer) == written(off)


def test_functions_are_strict_unless_they_say_no() -> None:
    silent = {name: value for name, value in WEATHER.items() if name != "strict"}
    with serving(script=WRONG) as running:
        answer = ask(running, tools=[silent], max_output_tokens=400)
    assert answer.tools[0].strict is True
    assert set(json.loads(written(answer)[0][1])) == {"city"}


def test_one_call_at_most() -> None:
    with serving(script=f"So: {call()}{call(BONN[1])}") as running:
        assert written(ask(running, parallel_tool_calls=False)) == [("text", "So: "), OSLO]
        assert written(ask(running)) == [("text", "So: "), OSLO, BONN]


# --- structured output -----------------------------------------------------------------------------------

SHAPE = {"type": "json_schema", "name": "weather", "schema": CITY}


@pytest.mark.parametrize("strict", [None, True, False])
@pytest.mark.parametrize("stream", [False, True])
def test_a_schema_is_followed(strict: bool | None, stream: bool) -> None:
    form = SHAPE if strict is None else {**SHAPE, "strict": strict}
    with serving() as running:
        answer = ask(running, tools=None, text={"format": form}, stream=stream)
    final = answer[-1].response if stream else answer
    assert final.status == "completed"
    assert set(json.loads(final.output_text)) == {"city"}
    assert final.text.format.to_dict() == form


def test_any_json_object() -> None:
    with serving(script="Sure! {}", speculate="grammar") as running:
        answer = ask(running, tools=None, text={"format": {"type": "json_object"}}, max_output_tokens=200)
    assert answer.output_text.startswith("{")


def test_the_client_s_own_helpers_read_formats() -> None:
    with serving(script='{"city": "Oslo"}') as running, client_of(running) as client:
        options = given(tools=None)
        parsed = client.responses.parse(**options, text_format=Weather)
        with client.responses.stream(**options, text_format=Weather) as stream:
            final = stream.get_final_response()
    assert parsed.output_parsed == final.output_parsed == Weather(city="Oslo")


def test_a_format_is_that_of_an_answer_without_calls() -> None:
    options: dict[str, Any] = {"text": {"format": SHAPE}, "max_output_tokens": 200}
    with serving(script=call()) as running:
        assert written(ask(running, **options)) == [OSLO]
        assert written(ask(running, **options, tools=[NOW, STRICT])) == [OSLO]
        [forced] = ask(
            running, **options, tools=[NOW], tool_choice="required", parallel_tool_calls=False
        ).output
        assert forced.name == "now"
    with serving(script='{"city": "Oslo"}') as running:
        assert written(ask(running, **options)) == [("text", '{"city": "Oslo"}')]
    with serving() as running:  # noise: what is written is one of the two, and nothing else
        for tool in (STRICT, {**NOW, "strict": True}):
            [(_, text)] = written(ask(running, **options, tools=[tool], parallel_tool_calls=False))
            assert isinstance(json.loads(text), dict)


# --- beside the answer -----------------------------------------------------------------------------------


def test_drafting_can_be_switched_off() -> None:
    with serving(script="abc " * 30) as running:
        off = ask(running, tools=None, extra_body={"speculate": "off"})
        auto = ask(running, tools=None)
    assert off.model_extra["timings"]["draft_n"] == 0
    assert off.model_extra["speculation"]["reason"] == "switched off for this request"
    assert auto.model_extra["timings"]["draft_n_accepted"] > 0
    assert off.output_text == auto.output_text


def test_a_request_runs_at_its_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    key = KeySettings(name="alice", hash=hash_key("none"), max_priority=2)
    seen: list[int] = []

    def seeing(*rest: Any, **options: Any) -> int:
        seen.append(options["priority"])
        return add(*rest, **options)

    with serving(settings=ServerSettings(keys=(key,)), script="hi") as running:
        ask(running)
        add = running.engines["fake"].add
        monkeypatch.setattr(running.engines["fake"], "add", seeing)
        ask(running, extra_body={"priority": -4})
        with pytest.raises(openai.PermissionDeniedError, match="priority: 3"):
            ask(running, extra_body={"priority": 3})
    assert seen == [-4]
