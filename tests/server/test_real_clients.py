"""Requests as agents, editors and proxies send them: what makes no difference is accepted, and what would
make one is refused with the reason."""

from __future__ import annotations

import gzip
import json
import socket
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from foredraft.server.anthropic.schemas import MessagesRequest
from foredraft.server.openai.chat_schemas import ChatRequest
from foredraft.server.openai.response_schemas import ResponseRequest
from foredraft.server.openai.schemas import CompletionRequest
from http_server import Running
from malformed_bodies import JSON, fault

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
EPHEMERAL = {"type": "ephemeral"}


def post(server: Running, path: str, body: dict[str, Any]) -> httpx.Response:
    given = {"model": "fake", "max_tokens": 3, **body}
    if path == CHAT:
        given = {"messages": HELLO, "temperature": 0, **given}
    return httpx.post(f"{server.url}{path}", json=given, timeout=30)


def back(**fields: Any) -> dict[str, Any]:
    """A conversation in which the client hands an answer back with these fields."""
    return {"messages": [*HELLO, {"role": "assistant", "content": "yes", **fields}, *HELLO]}


def parts(*content: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(content)}]}


@pytest.mark.parametrize(
    ("body", "same"),
    [
        (parts({"type": "text", "text": "hello", "cache_control": EPHEMERAL}), {}),
        (parts({"type": "text", "text": "hello", "cache_control": {**EPHEMERAL, "ttl": "1h"}}), {}),
        (parts({"type": "text", "text": "hello", "cache_control": None}), {}),
        (back(reasoning_content=None, tool_calls=[], function_call=None, refusal=None), back()),
        (back(reasoning_content="hm"), back()),
        ({"stream_options": {"include_usage": None}, "stream": True}, None),
        ({"min_tokens": None, "ignore_eos": None, "priority": None, "stop_token_ids": None}, {}),
        ({"speculate": None, "grammar": None, "regex": None, "response_format": None}, {}),
    ],
)
def test_what_makes_no_difference(server: Running, body: dict[str, Any], same: dict[str, Any] | None) -> None:
    reply = post(server, CHAT, body)
    assert reply.status_code == 200, reply.text
    if same is not None:
        expected = post(server, CHAT, same)
        assert reply.json()["choices"] == expected.json()["choices"]


@pytest.mark.parametrize("content", [None, "", [{"type": "text", "text": ""}]])
@pytest.mark.parametrize("result", ["12", [{"type": "text", "text": "12"}]])
def test_calls_that_go_back(server: Running, content: Any, result: Any) -> None:
    answer = {"role": "assistant", "content": content, "tool_calls": [CALL]}
    tool = {"role": "tool", "tool_call_id": "c", "content": result}
    assert post(server, CHAT, {"messages": [*HELLO, answer, tool]}).status_code == 200


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (parts({"type": "text", "text": "x", "cache_control": {"type": "forever"}}), "cache_control"),
        (parts({"type": "text", "text": "x", "cache_control": {**EPHEMERAL, "n": 1}}), "cache_control"),
        (back(refusal="no"), "put the text in content"),
        (
            {"response_format": {"type": "json_object", "json_schema": {"name": "a", "schema": {}}}},
            "json_schema needs the type 'json_schema'",
        ),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop.1"),
    ],
)
def test_what_would_make_one(server: Running, body: dict[str, Any], says: str) -> None:
    reply = post(server, CHAT, body)
    assert fault(reply, CHAT) is None, reply.text
    message = reply.json()["error"]["message"]
    assert says in message
    assert "tuple" not in message
    assert "Input should be None" not in message


def test_messages_with_what_a_proxy_leaves_null(server: Running) -> None:
    sampling, others = ("temperature", "top_p", "top_k"), ("stop_sequences", "stream", "system", "thinking")
    nothing = dict.fromkeys((*sampling, *others, "metadata", "tools"))
    reply = post(server, "/v1/messages", {"messages": HELLO, **nothing})
    assert reply.status_code == 200, reply.text
    assert reply.json()["content"][0]["type"] == "text"


@pytest.mark.parametrize("made", [ChatRequest, CompletionRequest, ResponseRequest, MessagesRequest])
def test_every_optional_field_may_be_null(made: type[BaseModel]) -> None:
    whole: dict[str, Any] = {"model": "fake", "messages": HELLO, "prompt": "a", "input": "a", "max_tokens": 1}
    needed = {name: whole[name] for name, field in made.model_fields.items() if field.is_required()}
    for name, field in made.model_fields.items():
        if not field.is_required():
            made.model_validate({**needed, name: None})


WHOLE: dict[str, dict[str, Any]] = {
    CHAT: {
        "max_tokens": 3,
        "top_k": 2,
        "seed": 1,
        "n": 1,
        "min_tokens": 1,
        "priority": 0,
        "speculate": 2,
        "stop_token_ids": [1, 2],
        "logprobs": True,
        "top_logprobs": 1,
    },
    "/v1/completions": {"prompt": [104, 105], "max_tokens": 3, "best_of": 1, "logprobs": 1},
    "/v1/responses": {"input": "hi", "max_output_tokens": 3, "max_tool_calls": 2, "top_logprobs": 0},
    "/v1/messages": {"model": "fake", "messages": HELLO, "max_tokens": 3, "top_k": 1},
    "/detokenize": {"tokens": [104, 105]},
}
"""Every field that holds a whole number."""


WHOLE_FIELDS = [
    (path, name)
    for path, body in WHOLE.items()
    for name, value in body.items()
    if isinstance(value, int | list) and not isinstance(value, bool) and name != "messages"
]


@pytest.mark.parametrize(("path", "name"), WHOLE_FIELDS)
def test_a_whole_number_may_be_written_as_a_fraction(server: Running, path: str, name: str) -> None:
    """16.0 is 16; 16.5 and true are not."""
    body, url = {**({"messages": HELLO} if path == CHAT else {}), **WHOLE[path]}, f"{server.url}{path}"
    several = isinstance(body[name], list)
    fraction = list(map(float, body[name])) if several else float(body[name])
    reply = httpx.post(url, json={**body, name: fraction}, timeout=30)
    assert reply.status_code == 200, reply.text
    for wrong in (16.5, True, 1e300):
        refused = httpx.post(url, json={**body, name: [wrong] if several else wrong})
        assert fault(refused, path) is None, refused.text


# --- HTTP ----------------------------------------------------------------------------------------------

BODY = json.dumps({"model": "fake", "messages": HELLO, "max_tokens": 2}).encode()


@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/tokenize"])
@pytest.mark.parametrize(
    ("coding", "content"), [("gzip", gzip.compress(BODY)), ("br", BODY)], ids=["gzip", "only said to be"]
)
def test_a_compressed_body_is_refused_as_what_it_is(
    server: Running, path: str, coding: str, content: bytes
) -> None:
    headers = {"content-type": JSON, "content-encoding": coding}
    reply = httpx.post(f"{server.url}{path}", content=content, headers=headers)
    assert reply.status_code == 415
    assert fault(reply, path) is None
    assert repr(coding) in reply.json()["error"]["message"]
    assert "uncompressed" in reply.json()["error"]["message"]
    assert reply.headers["accept-encoding"] == "identity"


def test_identity_is_no_compression(server: Running) -> None:
    headers = {"content-type": JSON, "content-encoding": "Identity"}
    assert httpx.post(f"{server.url}{CHAT}", content=BODY, headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("path", "begin"), [(CHAT, b"HTTP/1.1 100 Continue\r\n\r\n"), ("/v1/nothing", b"HTTP/1.1 404")]
)
def test_who_asks_before_it_sends_is_answered(server: Running, path: str, begin: bytes) -> None:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {JSON}\r\n"
    head += f"Content-Length: {len(BODY)}\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n"
    with socket.create_connection(("127.0.0.1", httpx.URL(server.url).port or 0), timeout=30) as client:
        client.sendall(head.encode())
        assert client.recv(len(begin)) == begin
        client.sendall(BODY)
        assert client.recv(1 << 16)


@pytest.mark.parametrize("path", ["/v1/models/fake/unload", "/v1/models/fake/load", CHAT])
@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null", "content-type": "application/x-www-form-urlencoded"},
        {"sec-fetch-mode": "no-cors", "sec-fetch-site": "cross-site"},
    ],
)
def test_a_web_page_cannot_post_nothing_either(server: Running, path: str, headers: dict[str, str]) -> None:
    """A browser sends that without asking first; unloading a model takes no body."""
    reply = httpx.post(f"{server.url}{path}", headers=headers)
    assert reply.status_code == 415, reply.text
    assert fault(reply, path) is None


def test_only_the_documented_page_is_there(server: Running) -> None:
    assert httpx.get(f"{server.url}/docs").status_code == 200
    for path in ("/redoc", "/docs/oauth2-redirect"):
        assert httpx.get(f"{server.url}{path}").status_code == 404
