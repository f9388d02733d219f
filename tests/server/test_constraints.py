"""Answers that have to be something, drafts that are capped, and requests that ask for too much."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from foredraft.server.settings import Limits, ServerSettings
from http_server import Running, client_of, serving

GET_WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 5}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "size": {"enum": ["small", "large"]}},
    "required": ["name", "size"],
    "additionalProperties": False,
}
LIMITS = ServerSettings(
    limits=Limits(
        max_n=2,
        max_stop=1,
        max_logit_bias=1,
        max_prompt_tokens=200,
        max_completion_tokens=400,
        max_schema_bytes=500,
    )
)


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with serving(speculate="auto", settings=LIMITS) as running:
        yield running


def ask(running: Running, **options: Any) -> Any:
    given: dict[str, Any] = {
        "model": "fake",
        "messages": [{"role": "user", "content": "hello"}],
        "temperature": 0,
        "max_tokens": 200,
    }
    with client_of(running) as client:
        return client.chat.completions.create(**{**given, **options})


def of_schema(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "thing", "schema": schema, "strict": True}}


@pytest.mark.parametrize("options", [{}, {"temperature": 1.5, "seed": 4}])
@pytest.mark.parametrize("speculate", ["auto", "off", 2])
def test_a_schema_is_followed_with_and_without_drafts(
    server: Running, options: dict[str, Any], speculate: str | int
) -> None:
    form = of_schema(SCHEMA)
    choice = ask(server, response_format=form, extra_body={"speculate": speculate}, **options).choices[0]
    plain = ask(server, response_format=form, extra_body={"speculate": "off"}, **options).choices[0]
    value = json.loads(choice.message.content)
    assert set(value) == {"name", "size"}
    assert value["size"] in ("small", "large")
    assert choice.finish_reason == "stop"
    assert choice.message.content == plain.message.content


def test_forced_tokens_are_drafted() -> None:
    with serving(speculate="grammar") as running:
        answer = ask(running, response_format=of_schema(SCHEMA))
    grammar = answer.model_extra["speculation"]["drafters"]["grammar"]
    assert grammar["accepted"] > 0
    assert grammar["accepted"] == grammar["drafted"]


def test_regex_and_grammar(server: Running) -> None:
    text = ask(server, extra_body={"regex": "[0-9]{3}-[0-9]{3}"}).choices[0].message.content
    assert re.fullmatch("[0-9]{3}-[0-9]{3}", text)
    text = ask(server, extra_body={"grammar": 'start: "yes" | "no"'}).choices[0].message.content
    assert text in ("yes", "no")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_call_that_must_be_made_is_made(choice: Any) -> None:
    """By a model that writes nothing but noise."""
    with serving(end=5.0) as running:
        answer = ask(running, tools=[GET_WEATHER], tool_choice=choice, parallel_tool_calls=False).choices[0]
    assert answer.finish_reason == "tool_calls"
    [call] = answer.message.tool_calls
    assert call.function.name == "get_weather"
    assert set(json.loads(call.function.arguments)) == {"city"}


def test_drafting_can_be_switched_off_for_a_request(server: Running) -> None:
    options = {"messages": [{"role": "user", "content": "abc " * 12}], "max_tokens": 200}
    off = ask(server, extra_body={"speculate": "off"}, **options)
    speculation = off.model_extra["speculation"]
    assert off.model_extra["timings"]["draft_n"] == 0
    assert speculation["active"] is False
    assert speculation["reason"] == "switched off for this request"
    auto = ask(server, extra_body={"speculate": "auto"}, **options)
    assert auto.choices[0].message.content == off.choices[0].message.content


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"response_format": {"type": "json_schema"}}, "needs json_schema"),
        ({"response_format": of_schema({"type": "nonsense"})}, "schema"),
        ({"response_format": of_schema({"$ref": "#"})}, "no token of this vocabulary"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": of_schema({"enum": ["x" * 600]})}, "larger than 500 bytes"),
        ({"extra_body": {"regex": "(", "grammar": "x"}}, "cannot be combined"),
        ({"extra_body": {"regex": "("}}, "regex"),
        ({"extra_body": {"grammar": "start: nothing"}}, "grammar"),
        ({"extra_body": {"speculate": "sometimes"}}, "speculate"),
        ({"extra_body": {"speculate": -1}}, "speculate"),
        ({"n": 3}, "at most 2"),
        ({"stop": ["a", "b"]}, "stop: 2 are too many"),
        ({"logit_bias": {"1": 1, "2": 1}}, "logit_bias: 2 tokens"),
        ({"max_tokens": 401}, "at most 400"),
        ({"messages": [{"role": "user", "content": "x" * 300}]}, "at most 200"),
    ],
)
def test_what_cannot_be_done_is_refused(server: Running, options: dict[str, Any], message: str) -> None:
    with pytest.raises(openai.BadRequestError, match=message):
        ask(server, **options)


def test_a_request_has_its_time() -> None:
    settings = ServerSettings(limits=Limits(request_timeout_s=0.3))
    with serving(settings=settings, end=-40.0, context_length=1_000_000) as running:
        with pytest.raises(openai.InternalServerError, match="deadline") as caught:
            ask(running, max_tokens=None)
        assert caught.value.status_code == 504


def test_a_queue_has_an_end() -> None:
    settings = ServerSettings(limits=Limits(max_waiting=0))
    with serving(settings=settings, end=-40.0, context_length=1_000_000, sequences=1) as running:
        with client_of(running) as client:
            stream = client.chat.completions.create(
                model="fake", messages=[{"role": "user", "content": "go on"}], stream=True
            )
            next(iter(stream))
            with pytest.raises(openai.RateLimitError) as caught:
                ask(running, max_tokens=5)
            assert caught.value.response.headers["Retry-After"]
            stream.close()
        assert ask(running, max_tokens=5).usage.completion_tokens == 5
