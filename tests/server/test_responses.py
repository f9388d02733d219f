"""OpenAI's Responses API, driven by the real client, streaming and not."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from foredraft import Engine
from foredraft.errors import QueueFullError
from foredraft.images import EncodedPrompt
from foredraft.types import Event
from http_server import Running, serving

LOGPROBS = "message.output_text.logprobs"
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
PLAIN = {"model": "fake", "input": "say something", "max_output_tokens": 40, "temperature": 0}
ENDS = {"temperature": 1, "seed": 1, "max_output_tokens": 3000, "stop": "a"}


def ask(client: openai.OpenAI, **options: Any) -> Any:
    ours = {name: options.pop(name) for name in ("seed", "stop") if name in options}
    body = {**ours, **options.pop("extra_body", {})}
    return client.responses.create(**{**PLAIN, **options}, extra_body=body or None)


def raw(server: Running, **options: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/responses", json={**PLAIN, **options}, timeout=30)


def raw_events(text: str) -> list[tuple[str, dict[str, Any]]]:
    """(the `event:` line, the data) of every event."""
    events = []
    for block in text.strip().split("\n\n"):
        name, data = block.split("\n")
        events.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return events


def chat_text(client: openai.OpenAI, messages: Sequence[Any], **options: Any) -> str | None:
    given: dict[str, Any] = {"model": "fake", "max_tokens": 40, "temperature": 0, **options}
    return str(client.chat.completions.create(messages=list(messages), **given).choices[0].message.content)


@pytest.fixture
def prompts(client: openai.OpenAI, server: Running, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The prompts that reach the engine from here on."""
    ask(client)  # loads the model
    engine, seen = server.engines["fake"], list[list[int]]()
    add = engine.add

    def seeing(prompt: EncodedPrompt, *rest: Any, **options: Any) -> int:
        seen.append(list(prompt.tokens))
        return add(prompt, *rest, **options)

    monkeypatch.setattr(engine, "add", seeing)
    return seen


# --- the answer ----------------------------------------------------------------------------------------


def test_the_answer_is_that_of_the_chat(client: openai.OpenAI, prompts: list[list[int]]) -> None:
    answer = ask(client)
    assert answer.object == "response"
    assert answer.model == "fake"
    assert answer.output_text == chat_text(client, [{"role": "user", "content": "say something"}])
    assert prompts[0] == prompts[1]
    (item,) = answer.output
    assert (item.type, item.role) == ("message", "assistant")
    assert item.content[0].annotations == []


@pytest.mark.parametrize(
    ("options", "messages"),
    [
        (
            {"instructions": "be brief"},
            [{"role": "system", "content": "be brief"}, {"role": "user", "content": "say something"}],
        ),
        (
            {"input": [{"role": "developer", "content": "d"}, {"role": "user", "content": "u"}]},
            [{"role": "system", "content": "d"}, {"role": "user", "content": "u"}],
        ),
        (
            {
                "instructions": "i",
                "input": [
                    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "u"}]},
                    {"role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
                    {
                        "role": "user",
                        "content": [
                            {"type": "input_text", "text": "one"},
                            {"type": "input_text", "text": "two"},
                        ],
                    },
                ],
            },
            [
                {"role": "system", "content": "i"},
                {"role": "user", "content": "u"},
                {"role": "assistant", "content": "a"},
                {"role": "user", "content": [{"type": "text", "text": t} for t in ("one", "two")]},
            ],
        ),
    ],
)
def test_input_means_what_messages_mean(
    client: openai.OpenAI, prompts: list[list[int]], options: dict[str, Any], messages: list[Any]
) -> None:
    answer = ask(client, **options, temperature=0.9, seed=4).output_text
    assert answer == chat_text(client, messages, temperature=0.9, seed=4)
    ask(client)
    asked, chatted, other = prompts
    assert asked == chatted != other


@pytest.mark.parametrize("include", [[], [LOGPROBS]])
def test_output_can_be_handed_back(
    client: openai.OpenAI, prompts: list[list[int]], include: list[str]
) -> None:
    first = ask(client, include=include)
    question = {"role": "user", "content": "say something"}
    follow = {"role": "user", "content": "and then?"}
    chat_text(client, [question, {"role": "assistant", "content": first.output_text}, follow])
    for items in (first.output, [item.model_dump() for item in first.output]):
        ask(client, input=[question, *items, follow])
    _, chatted, *handed_back = prompts
    assert handed_back == [chatted, chatted]


# --- the stream ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"temperature": 0.9, "seed": 3}, ENDS, {"include": [LOGPROBS]}])
def test_the_stream_holds_the_whole_answer(client: openai.OpenAI, options: dict[str, Any]) -> None:
    whole = ask(client, **options)
    events = list(ask(client, stream=True, **options))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert set(kinds[4:-4]) == {"response.output_text.delta"}
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        f"response.{whole.status}",
    ]
    deltas = events[4:-4]
    assert "".join(event.delta for event in deltas) == events[-4].text == whole.output_text
    final = events[-1].response
    assert final.output_text == whole.output_text
    assert final.status == whole.status
    assert [entry.to_dict() for event in deltas for entry in event.logprobs] == [
        entry.to_dict() for entry in final.output[0].content[0].logprobs
    ]
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert len({event.response.id for event in (events[0], events[1], events[-1])}) == 1
    ids = {event.item_id for event in deltas} | {events[2].item.id, events[-2].item.id, final.output[0].id}
    assert len(ids) == 1


@pytest.mark.parametrize("options", [{}, ENDS, {"include": [LOGPROBS], "top_logprobs": 2}])
def test_everything_that_clients_require_is_there(server: Running, options: dict[str, Any]) -> None:
    Response.model_validate(raw(server, **options).json(), strict=True)
    reply = raw(server, stream=True, **options)
    assert reply.headers["content-type"].startswith("text/event-stream")
    for name, data in raw_events(reply.text):
        event = EVENT.validate_python(data, strict=True)
        assert event.type == name == data["type"]


def test_the_client_s_own_fold(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": "fake", "input": "x", "temperature": 0, "max_output_tokens": 500}
    stop = {"stop": client.responses.create(**options).output_text[20:24]}
    with client.responses.stream(**options, extra_body=stop) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert final.status == "completed"
    assert "".join(deltas) == final.output_text != ""


def test_without_a_model_name_the_default_answers(server: Running) -> None:
    body = {"input": "say something", "max_output_tokens": 4}
    assert httpx.post(f"{server.url}/v1/responses", json=body).json()["model"] == "fake"


# --- how it ends ---------------------------------------------------------------------------------------


def test_an_answer_that_was_cut_is_incomplete(client: openai.OpenAI) -> None:
    answer = ask(client, max_output_tokens=5)
    assert answer.status == answer.output[0].status == "incomplete"
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.completed_at is None
    assert answer.usage.output_tokens == 5
    assert list(ask(client, max_output_tokens=5, stream=True))[-1].type == "response.incomplete"


def test_an_answer_that_ends_is_complete(client: openai.OpenAI) -> None:
    stop = ask(client).output_text[10:12]
    answer = ask(client, stop=stop)
    assert answer.status == answer.output[0].status == "completed"
    assert answer.incomplete_details is None
    assert answer.completed_at >= answer.created_at
    assert stop not in answer.output_text


def broken(engine: Engine, rounds: int) -> None:
    """Have the engine fail after some rounds."""
    step = engine.step
    left = rounds

    def failing() -> list[Event]:
        nonlocal left
        left -= 1
        if left < 0:
            raise RuntimeError("/secret/path")
        return step()

    engine.step = failing  # type: ignore[method-assign]


@pytest.mark.parametrize("rounds", [1, 4])
def test_an_answer_that_breaks_off_has_failed(rounds: int) -> None:
    with serving(speculate="off") as running:
        assert raw(running).status_code == 200
        engine = running.engines["fake"]
        whole = engine.step
        broken(engine, rounds)
        reply = raw(running, stream=True)
        engine.step = whole  # type: ignore[method-assign]
        broken(engine, rounds)
        plain = raw(running)
    assert reply.status_code == 200
    events = raw_events(reply.text)
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    assert [name for name, _ in events].count("response.failed") == 1
    failed = EVENT.validate_python(events[-1][1], strict=True)
    assert failed.type == "response.failed"
    assert failed.response.status == "failed"
    assert failed.response.error.code == "server_error"
    deltas = [data["delta"] for name, data in events if name == "response.output_text.delta"]
    assert failed.response.output_text == "".join(deltas)
    assert plain.status_code == 500
    assert plain.json()["error"]["type"] == "server_error"
    assert "secret" not in reply.text + plain.text


def test_a_call_that_breaks_off_is_incomplete() -> None:
    script = 'So. <tool_call>\n{"name": "f", "arguments": {"city": "Oslo"}}\n</tool_call>'
    tool = {"type": "function", "name": "f", "strict": False}
    with serving(speculate="off", script=script) as running:
        assert raw(running).status_code == 200
        broken(running.engines["fake"], script.index("slo"))
        events = raw_events(raw(running, stream=True, tools=[tool], max_output_tokens=90).text)
    failed = EVENT.validate_python(events[-1][1], strict=True)
    text, call = failed.response.output
    assert (failed.type, text.status, call.status) == ("response.failed", "completed", "incomplete")
    assert text.content[0].text == "So. "
    assert '{"city": "Oslo"}'.startswith(call.arguments)


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_finds_no_room_is_told_by_the_status(stream: bool) -> None:
    def full(*args: object, **options: object) -> int:
        raise QueueFullError("The queue is full.")

    with serving() as running:
        assert raw(running).status_code == 200
        running.engines["fake"].add = full  # type: ignore[method-assign]
        reply = raw(running, stream=stream)
    assert reply.status_code == 429
    assert reply.headers["retry-after"]
    assert reply.json()["error"]["code"] == "queue_full"


# --- what is said beside the text ----------------------------------------------------------------------


def test_usage(client: openai.OpenAI) -> None:
    options = {"input": "count these tokens: " + "x" * 200}
    chat = client.chat.completions.create(
        model="fake", messages=[{"role": "user", "content": options["input"]}], max_tokens=40, temperature=0
    )
    usage = ask(client, **options).usage
    assert chat.usage is not None
    assert usage.input_tokens == chat.usage.prompt_tokens
    assert usage.output_tokens == chat.usage.completion_tokens
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert usage.output_tokens_details.reasoning_tokens == 0
    details = usage.input_tokens_details
    assert details.cached_tokens > 100
    assert details.cached_tokens + details.cache_write_tokens == usage.input_tokens


def test_what_was_drafted_is_said(client: openai.OpenAI) -> None:
    whole = ask(client, max_output_tokens=300)
    final = list(ask(client, max_output_tokens=300, stream=True))[-1].response
    for answer in (whole, final):
        assert answer.model_extra["speculation"]["rounds"] < answer.usage.output_tokens
        assert answer.model_extra["timings"]["draft_n_accepted"] > 0


def test_log_probabilities_are_those_of_the_chat(client: openai.OpenAI) -> None:
    part = ask(client, include=[LOGPROBS], top_logprobs=2).output[0].content[0]
    chat = client.chat.completions.create(
        model="fake",
        messages=[{"role": "user", "content": "say something"}],
        max_tokens=40,
        temperature=0,
        logprobs=True,
        top_logprobs=2,
    )
    assert chat.choices[0].logprobs is not None
    expected = chat.choices[0].logprobs.content
    assert expected
    assert [entry.to_dict() for entry in part.logprobs] == [entry.to_dict() for entry in expected]
    assert ask(client).output[0].content[0].logprobs == []


def test_what_was_asked_for_is_echoed(client: openai.OpenAI) -> None:
    given: dict[str, Any] = {
        "metadata": {"job": "7"},
        "user": "u",
        "safety_identifier": "s",
        "instructions": "i",
        "temperature": 0.5,
        "top_p": 0.9,
        "max_output_tokens": 3,
        "parallel_tool_calls": False,
        "tool_choice": "none",
        "max_tool_calls": 3,
        "prompt_cache_key": "k",
    }
    answer = ask(client, **given)
    assert {name: getattr(answer, name) for name in given} == given
    plain = client.responses.create(model="fake", input="x", max_output_tokens=1)
    assert (plain.temperature, plain.top_p, plain.metadata, plain.error) == (1.0, 1.0, {}, None)
    assert plain.to_dict()["store"] is False
    assert plain.service_tier == "default"


def test_what_changes_nothing_is_accepted(client: openai.OpenAI) -> None:
    neutral: dict[str, Any] = {
        "store": False,
        "background": False,
        "previous_response_id": None,
        "conversation": None,
        "tools": [],
        "tool_choice": "auto",
        "include": [],
        "top_logprobs": 0,
        "truncation": "disabled",
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "reasoning": {"effort": "none", "summary": None},
        "service_tier": "auto",
        "extra_body": {"priority": 0, "speculate": "auto"},
        "stream": None,
        "instructions": None,
    }
    assert ask(client, **neutral).output_text == ask(client).output_text
    assert list(ask(client, stream=True, stream_options={"include_obfuscation": False}))


# --- around it -------------------------------------------------------------------------------------------


def test_a_client_that_goes_away_frees_its_place() -> None:
    with serving(end=-40.0, context_length=1_000_000) as running:
        body = {"input": "go on", "temperature": 0, "stream": True}
        with httpx.stream("POST", f"{running.url}/v1/responses", json=body, timeout=10) as reply:
            assert next(reply.iter_lines()) == "event: response.created"
        engine = running.engines["fake"]
        deadline = time.monotonic() + 10
        while not engine.idle:
            assert time.monotonic() < deadline, "the request is still running"
            time.sleep(0.01)


def test_the_document_describes_the_input(server: Running) -> None:
    schemas = httpx.get(f"{server.url}/openapi.json").json()["components"]["schemas"]
    shapes = schemas["ResponseRequest"]["properties"]["input"]["anyOf"]
    assert {shape["type"] for shape in shapes} == {"string", "array"}
