"""Whatever a client sends: an error of the client's, in the API's own form, and nothing is left behind."""

from __future__ import annotations

import json
import logging
import re
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from pydantic import BaseModel, ValidationError

from foredraft.server.anthropic.schemas import MessagesRequest
from foredraft.server.extras.tokens import DetokenizeRequest
from foredraft.server.openai.chat_schemas import ChatRequest
from foredraft.server.openai.schemas import CompletionRequest
from http_server import Running, serving
from malformed_bodies import JSON, Malformed, encode, fault, malformed, send
from valid_bodies import VALID

COUNT = 500
SEED = 20
DEPTHS = (60, 200, 500, 900)
"""Nesting that Python's parser reads, and that recursion further on may not."""


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with serving("fake") as running:
        yield running


@pytest.fixture(scope="module")
def http(server: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=30) as client:
        yield client


USER = {"role": "user", "content": "hi"}
CLAUDE = {"model": "fake", "messages": [USER], "max_tokens": 4}


def part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def tool(description: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
    function: dict[str, Any] = {"name": "f", "description": description}
    return {"type": "function", "function": function | ({"parameters": parameters} if parameters else {})}


def of_schema(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}


def post(http: httpx.Client, path: str, body: object) -> httpx.Response:
    return http.post(path, content=encode(body), headers={"content-type": JSON})


def nothing_left(server: Running, http: httpx.Client) -> bool:
    """No request, and no token in the KV cache that one holds."""
    names = ("num_requests", "num_requests_running", "num_requests_waiting", "kv_cache_tokens")
    wanted = [f'foredraft_{name}{{model="fake"}} 0.0' for name in names]
    lines = http.get("/metrics").text.splitlines()
    return all(line in lines for line in wanted) and server.engines["fake"].idle


def eventually_nothing_left(server: Running, http: httpx.Client) -> bool:
    for _ in range(200):  # requests of a stream that broke off end before the next round
        if nothing_left(server, http):
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("path", VALID)
def test_the_bodies_that_are_damaged_are_valid(http: httpx.Client, path: str) -> None:
    for body in VALID[path]:
        reply = post(http, path, body)
        assert reply.status_code == 200, reply.text


def test_the_same_seed_makes_the_same_bodies() -> None:
    first, again, other = (list(malformed(50, seed=seed)) for seed in (1, 1, 2))
    assert first == again != other
    assert len({request.wrong for request in malformed(COUNT, seed=SEED)}) > COUNT / 3


def test_malformed_bodies_are_the_client_s_error(server: Running, http: httpx.Client) -> None:
    """And afterwards every path answers, and nothing runs or holds a part of the KV cache."""
    faults, paths = [], set()
    for request in malformed(COUNT, seed=SEED):
        paths.add(request.path)
        wrong = fault(send(http, request), request.path)
        if wrong:
            faults.append(f"{request.path}: {request.wrong}: {wrong}")
    assert not faults, "\n".join(faults)
    assert paths == set(VALID)
    for path, bodies in VALID.items():
        for body in bodies:
            assert post(http, path, body).status_code == 200
    assert eventually_nothing_left(server, http)


@pytest.mark.parametrize("depth", DEPTHS)
def test_deep_nesting_where_anything_may_stand_is_no_fault_of_the_server(
    server: Running, http: httpx.Client, depth: int
) -> None:
    """Some of these are valid and answered."""
    nested: Any = "string"
    schema: dict[str, Any] = {"type": "string", "maxLength": 3}
    for _ in range(depth):
        nested = [nested]
        schema = {"type": "array", "items": schema, "minItems": 1, "maxItems": 1}
    parameters = {"type": "object", "properties": {"a": schema}}
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": json.dumps({"a": nested})}}
    arguments = [USER, {"role": "assistant", "tool_calls": [call]}, USER]
    tools = {"tools": [tool("d", parameters)]}
    named = {"type": "json_schema", "name": "a"}
    chats: list[dict[str, Any]] = [
        {"messages": [{"role": "user", "content": [{**part("hi"), "more": nested}]}]},
        {"messages": [USER], "prediction": {"type": "content", "content": [{**part("a"), "more": nested}]}},
        {"messages": [USER], "response_format": of_schema(schema)},
        {"messages": [USER], "response_format": of_schema({"enum": [nested]})},
        {"messages": [USER], **tools},
        {"messages": [USER], **tools, "tool_choice": "required"},
        {"messages": [USER], **tools, "tool_choice": {"type": "function", "function": nested}},
        {"messages": arguments},
        {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [{"a": nested}]}, USER]},
    ]
    annotated = {"type": "output_text", "text": "x", "annotations": [{"a": nested}]}
    text = json.dumps({"a": nested})
    called = {
        "type": "function_call",
        "call_id": "1",
        "name": "f",
        "arguments": text,
        "parsed_arguments": nested,
    }
    of_claude = [{"type": "tool_use", "id": "1", "name": "f", "input": {"a": nested}}]
    claude_tool = {"name": "f", "input_schema": parameters}
    asked = [
        *(("/v1/chat/completions", {**chat, "max_tokens": 4}) for chat in chats),
        ("/v1/responses", {"input": [{"role": "user", "content": [annotated]}], "max_output_tokens": 4}),
        ("/v1/responses", {"input": [USER, called], "max_output_tokens": 4}),
        ("/v1/responses", {"input": "hi", "text": {"format": {**named, "schema": schema}}}),
        ("/v1/messages", {**CLAUDE, "messages": [USER, {"role": "assistant", "content": of_claude}, USER]}),
        ("/v1/messages", {**CLAUDE, "tools": [claude_tool], "tool_choice": {"type": "any"}}),
        ("/v1/messages", {**CLAUDE, "output_config": {"format": {"type": "json_schema", "schema": schema}}}),
    ]
    for path, body in asked:
        reply = post(http, path, body)
        wrong = fault(reply, path)
        assert reply.status_code == 200 or wrong is None, f"{wrong}: {encode(body)[:200]!r}"
    assert eventually_nothing_left(server, http)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [USER], "user": "\ud800"}),
        ("/v1/completions", {"prompt": "hi", "user": "\ud800"}),
        ("/v1/responses", {"input": "hi", "user": "\ud800"}),
        ("/v1/responses", {"input": "hi", "safety_identifier": "\ud800"}),
        ("/v1/responses", {"input": "hi", "metadata": {"a": "\ud800"}}),
        ("/v1/responses", {"input": "hi", "metadata": {"\ud800": "a"}}),
        ("/v1/chat/completions", {"messages": [USER], "stop": ["a", "\ud800"]}),
        ("/v1/chat/completions", {"messages": [USER], "regex": "\ud800"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [part("\ud800")]}]}),
        ("/v1/chat/completions", {"messages": [USER], "tools": [tool("\ud800")]}),
        ("/v1/messages", {**CLAUDE, "metadata": {"user_id": "\ud800"}}),
        ("/v1/messages", {**CLAUDE, "system": "\ud800"}),
    ],
)
def test_half_a_character_is_refused_wherever_it_stands(
    http: httpx.Client, path: str, body: dict[str, Any], stream: bool
) -> None:
    reply = post(http, path, {**body, "stream": stream})
    assert fault(reply, path) is None
    assert "lone surrogate" in reply.json()["error"]["message"]


@pytest.mark.parametrize("action", ["load", "unload"])
@pytest.mark.parametrize(
    "name",
    ["nonesuch", "%00", "%FF%FE", "%ED%A0%80", "..", "%2e%2e%2f%2e%2e%2fetc%2fpasswd", "x" * 20_000, "%20"],
)
def test_names_of_no_model(server: Running, http: httpx.Client, name: str, action: str) -> None:
    assert fault(http.post(f"/v1/models/{name}/{action}"), "") is None


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"stop": 3}, "stop"),
        ({"stop": ["a", 3]}, "stop.1"),
        ({"messages": [USER, {"role": "user", "content": 3}]}, "messages.1.content"),
        ({"messages": [USER, {"role": "user", "content": ["hi"]}]}, "messages.1.content.0"),
        ({"messages": [{"content": "hi"}]}, "messages.0.role"),
        ({"speculate": {}}, "speculate"),
        ({"logit_bias": {"1": "much"}}, "logit_bias.1"),
        ({"temperature": 3}, "temperature"),
        ({"temperatur": {"r": 1}}, "temperatur"),
    ],
)
def test_param_leads_to_what_is_wrong(http: httpx.Client, body: dict[str, Any], param: str) -> None:
    """By the body's own keys only."""
    error = post(http, "/v1/chat/completions", {"messages": [USER], **body}).json()["error"]
    assert error["param"] == param
    assert param in error["message"]


@pytest.mark.parametrize(
    ("block", "place"),
    [
        ({"type": "text", "text": "hi", "image": 1}, "messages.0.content.0.image"),
        ({"type": "text", "text": 3}, "messages.0.content.0.text"),
        ({"type": "text"}, "messages.0.content.0.text"),
        ({"type": "tool_use", "id": "1", "name": 3, "input": {}}, "messages.0.content.0.name"),
    ],
)
def test_a_kind_of_block_is_not_taken_for_a_key(
    http: httpx.Client, block: dict[str, Any], place: str
) -> None:
    reply = post(http, "/v1/messages", {**CLAUDE, "messages": [{"role": "user", "content": [block]}]})
    assert re.search(rf"(^|'){place}('|:)", reply.json()["error"]["message"]), reply.text


@pytest.mark.parametrize("action", ["load", "unload"])
def test_loading_takes_no_body(http: httpx.Client, action: str) -> None:
    path = f"/v1/models/fake/{action}"
    for request in malformed(60, seed=SEED, paths=("/detokenize",)):
        reply = send(http, Malformed(request.wrong, path, request.content, request.content_type))
        if request.content not in (b"", b"null"):
            assert fault(reply, path) is None, request.wrong
    assert http.post(path).status_code == 200
    assert http.post(path, json={}).status_code == 200


@pytest.mark.parametrize(
    ("made", "body"),
    [
        (DetokenizeRequest, {"tokens": ["x"] * 2000}),
        (CompletionRequest, {"prompt": ["x", *[{}] * 2000]}),
        (CompletionRequest, {"prompt": [[{}] * 2000] * 3}),
        (CompletionRequest, {"prompt": "a", "stop_token_ids": ["x"] * 2000}),
        (ChatRequest, {"messages": [{}] * 2000}),
        (ChatRequest, {"messages": [{"role": "user", "content": ["x"] * 2000}]}),
        (ChatRequest, {"messages": [USER], "tools": ["x"] * 2000}),
        (ChatRequest, {"messages": [USER], **{str(key): 1 for key in range(2000)}}),
        (MessagesRequest, {**CLAUDE, "messages": [{}] * 2000}),
    ],
)
def test_a_million_faults_are_not_all_told(made: type[BaseModel], body: dict[str, Any]) -> None:
    """Each takes 15 µs, in which nobody else is answered."""
    with pytest.raises(ValidationError) as caught:
        made.model_validate(body)
    assert caught.value.error_count() < 10


@pytest.mark.parametrize("kind", [TypeError, KeyError, AttributeError, OSError])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_a_fault_of_our_own_while_a_body_is_read_is_none_of_the_client_s(
    http: httpx.Client,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kind: type[Exception],
    path: str,
) -> None:
    def broken(*_: object) -> None:
        raise kind("a secret of ours")

    monkeypatch.setattr("foredraft.server.openai.schemas.check", broken)
    reply = post(http, path, CLAUDE)
    assert reply.status_code == 500
    message = reply.json()["error"]["message"]
    assert "secret" not in reply.text
    (record,) = [one for one in caplog.records if one.levelname == "ERROR"]
    assert record.getMessage().split()[-1] in message
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], kind)


def test_a_client_that_leaves_within_its_body_is_no_fault(
    server: Running, http: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "foredraft.requests")
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as line:
        head = f"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: {JSON}\r\n"
        line.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())
        time.sleep(0.1)
    for _ in range(500):
        if any("/tokenize" in one.getMessage() for one in caplog.records):
            break
        time.sleep(0.01)
    assert http.get("/health").status_code == 200
    assert not [one for one in caplog.records if one.levelname == "ERROR"]
