"""An object that has a key twice: of two values one would be ignored in silence."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from http_server import Running
from malformed_bodies import JSON, fault
from valid_bodies import VALID


def post(server: Running, path: str, content: str) -> httpx.Response:
    return httpx.post(f"{server.url}{path}", content=content, headers={"content-type": JSON}, timeout=30)


def repeated(body: dict[str, Any], key: str) -> str:
    """The body with a second value for one of its keys, the same or another."""
    return f"{json.dumps(body)[:-1]}, {json.dumps(key)}: {json.dumps(body[key])}}}"


@pytest.mark.parametrize("path", VALID)
def test_every_key_of_every_body(server: Running, path: str) -> None:
    for body in VALID[path]:
        for key in body:
            reply = post(server, path, repeated(body, key))
            assert fault(reply, path) is None, (key, reply.text)
            assert reply.json()["error"]["message"] == f"The body has the key {key!r} twice in one object."


@pytest.mark.parametrize(
    ("path", "content", "key"),
    [
        (
            "/v1/chat/completions",
            '{"messages": [{"role": "user", "content": "a", "content": "b"}]}',
            "content",
        ),
        ("/v1/chat/completions", '{"messages": [], "metadata": {"a": "1", "a": "1"}}', "a"),
        ("/v1/chat/completions", '{"messages": [], "logit_bias": {"7": 1, "8": 2, "7": 3}}', "7"),
        ("/v1/responses", '{"input": "a", "text": {"format": {"type": "text", "type": "text"}}}', "type"),
        ("/v1/messages", '{"messages": [{"role": "user", "content": [{"text": "a", "text": ""}]}]}', "text"),
        ("/v1/messages", '{"messages": [{"role": "user", "r\\u006fle": "user"}]}', "role"),
        ("/v1/models/fake/load", '{"a": {"": 1, "": 2}}', ""),
        ("/tokenize", '[{"content": "a", "content": "a"}]', "content"),
    ],
)
def test_wherever_it_stands(server: Running, path: str, content: str, key: str) -> None:
    reply = post(server, path, content)
    assert fault(reply, path) is None, reply.text
    error = reply.json()["error"]
    assert error["message"] == f"The body has the key {key!r} twice in one object."
    if not path.startswith("/v1/messages"):
        assert (error["param"], error["code"]) == (key, "invalid_request")


def test_a_long_key_does_not_come_back(server: Running) -> None:
    key = "k" * 1_000_000
    reply = post(server, "/tokenize", f'{{"{key}": 1, "{key}": 2}}')
    assert fault(reply, "/tokenize") is None, reply.text[:300]


def test_the_same_key_in_two_objects_is_no_key_twice(server: Running) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    body = {"messages": [*messages, messages[0]], "max_tokens": 1}
    assert post(server, "/v1/chat/completions", json.dumps(body)).status_code == 200


@pytest.mark.parametrize(
    "bias",
    [
        {"97": 1, "097": 2},
        {" 97": 1},
        {"9_7": 1},
        {"+97": 1},
        {"-0": 1},
        {"٣": 1},
        {"": 1},
        {"97\n": 1},
        {"9" * 5000: 1},
    ],
)
def test_a_token_has_one_name_in_logit_bias(server: Running, bias: dict[str, int]) -> None:
    body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "logit_bias": bias}
    reply = post(server, "/v1/chat/completions", json.dumps(body))
    assert fault(reply, "/v1/chat/completions") is None, reply.text
    assert "logit_bias: its keys must be token ids" in reply.json()["error"]["message"]
