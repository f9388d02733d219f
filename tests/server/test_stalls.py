"""One client's body holds nobody else up: it is bounded before it is looked through, and read on the side."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from foredraft.server.openai.schemas import MOST_MESSAGES, MOST_STOP_TOKENS
from foredraft.server.strict_json import LARGE, MOST_VALUES
from http_server import Running, serving

USER = {"role": "user", "content": "hi"}
CHAT: dict[str, Any] = {"messages": [USER], "max_tokens": 2}
MESSAGES: dict[str, Any] = {"model": "fake", **CHAT}
COMPLETION: dict[str, Any] = {"prompt": "hi", "max_tokens": 2}
MANY = [7] * MOST_VALUES


def post(server: Running, path: str, body: Any, **options: Any) -> httpx.Response:
    return httpx.post(f"{server.url}{path}", json=body, timeout=30, **options)


def refused(server: Running, path: str, body: Any) -> str:
    """What the server says to a body that it does not take."""
    reply = post(server, path, body)
    assert reply.status_code == 400
    return str(reply.json()["error"]["message"])


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {**CHAT, "stop_token_ids": MANY}),
        ("/v1/chat/completions", {**CHAT, "stop": ["x"] * MOST_VALUES}),
        ("/v1/chat/completions", {**CHAT, "logit_bias": {str(token): 1 for token in range(MOST_VALUES)}}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{}] * MOST_VALUES}]}),
        ("/v1/completions", {"prompt": MANY}),
        ("/v1/completions", {"prompt": [[7]] * MOST_VALUES}),
        ("/v1/completions", {"prompt": ["x"] * MOST_VALUES}),
        ("/v1/responses", {"input": "hi", "tools": [{}] * MOST_VALUES}),
        ("/v1/messages", {**MESSAGES, "tools": [{"input_schema": {"enum": MANY}}]}),
        ("/detokenize", {"tokens": MANY}),
        ("/tokenize", [*MANY, 7]),
    ],
)
def test_a_body_has_so_many_values_and_no_more(server: Running, path: str, body: Any) -> None:
    assert f"more than {MOST_VALUES} values" in refused(server, path, body)


def test_commas_in_a_text_are_no_values(server: Running) -> None:
    text = ',:\\"' * MOST_VALUES
    body = {**CHAT, "metadata": {"a": text}}  # read whole, and refused for the length of the text alone
    assert "512 characters" in refused(server, "/v1/chat/completions", body)


@pytest.mark.parametrize(
    ("path", "body", "most"),
    [
        ("/v1/chat/completions", {**CHAT, "stop_token_ids": [7] * (MOST_STOP_TOKENS + 1)}, MOST_STOP_TOKENS),
        ("/v1/completions", {**COMPLETION, "stop_token_ids": [7] * 5000}, MOST_STOP_TOKENS),
        ("/v1/chat/completions", {"messages": [USER] * (MOST_MESSAGES + 1)}, MOST_MESSAGES),
        ("/v1/messages", {**MESSAGES, "messages": [USER] * (MOST_MESSAGES + 1)}, MOST_MESSAGES),
        ("/v1/responses", {"input": [USER] * (MOST_MESSAGES + 1)}, MOST_MESSAGES),
    ],
)
def test_a_list_has_so_many_items_and_no_more(server: Running, path: str, body: Any, most: int) -> None:
    assert f"at most {most} items" in refused(server, path, body)


def test_as_many_as_are_allowed_are_taken(server: Running) -> None:
    body = {**CHAT, "stop_token_ids": [250] * MOST_STOP_TOKENS}
    assert post(server, "/v1/chat/completions", body).status_code == 200


@contextmanager
def encoding(server: Running, spy: Callable[[str], None]) -> Iterator[None]:
    """`spy` hears of every text that the server encodes, before it is."""
    tokenizer = server.engines["fake"].model.tokenizer
    encode = tokenizer.encode

    def encode_and_tell(text: str, **options: bool) -> list[int]:
        spy(text)
        return encode(text, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizer, "encode", encode_and_tell)
        yield


LONG = "a" * 600_000
"""Characters: of 4,096 tokens each would have more than any token has."""


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG[:99_000]}] * 7}),
        ("/v1/chat/completions", {**CHAT, "prediction": {"type": "content", "content": LONG}}),
        (
            "/v1/chat/completions",
            {**CHAT, "tools": [{"type": "function", "function": {"name": "f", "description": LONG}}]},
        ),
        ("/v1/completions", {"prompt": LONG}),
        ("/v1/completions", {"prompt": "a", "suffix": LONG}),
        ("/v1/responses", {"input": LONG}),
        ("/v1/responses", {"input": "hi", "instructions": LONG}),
        ("/v1/messages", {**MESSAGES, "system": LONG}),
        ("/tokenize", {"content": LONG}),
    ],
)
def test_a_text_that_no_context_can_hold_is_not_encoded(path: str, body: Any) -> None:
    encoded: list[int] = []
    with serving() as server:
        assert post(server, "/tokenize", {"content": "load"}).status_code == 200
        with encoding(server, lambda text: encoded.append(len(text))):
            assert "context" in refused(server, path, body)
    assert not [length for length in encoded if length > 9000]


def test_a_prediction_is_encoded_before_the_engine_hears_of_it() -> None:
    threads: list[str] = []
    with serving() as server:
        post(server, "/tokenize", {"content": "load"})

        def spy(text: str) -> None:
            if text == "expected":
                threads.append(threading.current_thread().name)

        with encoding(server, spy):
            body = {**CHAT, "n": 2, "prediction": {"type": "content", "content": "expected"}}
            assert post(server, "/v1/chat/completions", body).status_code == 200
    assert len(threads) == 1
    assert threads[0].startswith("foredraft-prepare")


def test_a_large_body_is_read_on_the_side(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, go_on = threading.Event(), threading.Event()
    loads = json.loads

    def slow(text: str, **options: Any) -> Any:
        if len(text) > LARGE:
            reading.set()
            assert go_on.wait(20)
        return loads(text, **options)

    with serving() as server:
        post(server, "/tokenize", {"content": "load"})
        monkeypatch.setattr("foredraft.server.strict_json.json.loads", slow)
        thread = threading.Thread(target=post, args=(server, "/tokenize", {"content": "a" * 2 * LARGE}))
        thread.start()
        try:
            assert reading.wait(10)
            assert httpx.get(f"{server.url}/health", timeout=10).status_code == 200
            assert post(server, "/tokenize", {"content": "short"}).status_code == 200
        finally:
            go_on.set()
            thread.join(20)
