"""Where answers hold null: where the APIs they speak send it, and nowhere else. Strict readers (zod, serde)
take null only where their documents have it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from claude_server import HERMES, WEATHER, call, replying_model
from foredraft.testing import FakeModel
from foredraft.types import Event
from http_server import Running, serving

HELLO = [{"role": "user", "content": "hello"}]
TOOL = {"name": "get_weather", "parameters": WEATHER["input_schema"]}
CHAT_TOOL = {"type": "function", "function": TOOL}
FLAT_TOOL = {"type": "function", **TOOL, "strict": False}
LOGPROBS = "message.output_text.logprobs"

SPECULATION = {"speculation.reason", "speculation.acceptance_rate", "speculation.acceptance_length"}
SPECULATION |= {"speculation.estimated_speedup", "speculation.reason_code"}
"""Our own, as docs/python-api.md has them."""

CHOICE = {"choices.logprobs", "choices.finish_reason", "choices.logprobs.refusal"}
CHAT = {*CHOICE, "choices.message.content", "choices.message.refusal"}
SCORES = {"choices.logprobs.token_logprobs", "choices.logprobs.top_logprobs"}
ASKED = {"instructions", "max_output_tokens", "max_tool_calls", "previous_response_id", "prompt_cache_key"}
ASKED |= {"reasoning.effort", "reasoning.summary", "safety_identifier", "user"}
RESPONSE = {*ASKED, "error", "incomplete_details", "completed_at", "usage"}
MESSAGE = {"stop_reason", "stop_sequence"}

ALLOWED: dict[str, set[str]] = {
    "/v1/chat/completions": {*CHAT, *SPECULATION, "usage"},
    "/v1/completions": {*CHOICE, *SCORES, *SPECULATION, "usage"},
    "/v1/responses": {*RESPONSE, *SPECULATION, *(f"response.{name}" for name in RESPONSE | SPECULATION)},
    "/v1/messages": {
        *MESSAGE,
        *SPECULATION,
        *(f"{event}.{name}" for event in ("message", "delta") for name in MESSAGE),
    },
    "/v1/messages/count_tokens": set(),
    "/tokenize": set(),
    "/detokenize": set(),
    "/v1/models": set(),
    "error": {"error.param", "error.code"},
}
"""By path. OpenAI: the reference of each object, and its examples (`usage` of chunks before the last, with
`include_usage`). Anthropic: https://docs.anthropic.com/en/api/messages, the message and the events.
"""


def places(value: object, at: str = "") -> Iterator[str]:
    """Where null stands, without the numbers of items."""
    if value is None:
        yield at
    parts = value.items() if isinstance(value, dict) else ()
    for key, part in parts:
        yield from places(part, f"{at}.{key}".lstrip("."))
    for part in value if isinstance(value, list) else ():
        yield from places(part, at)


def bodies(reply: httpx.Response) -> list[Any]:
    """A whole answer, or the data of a stream's events."""
    if not reply.headers["content-type"].startswith("text/event-stream"):
        return [reply.json()]
    data = [line.removeprefix("data: ") for line in reply.text.split("\n") if line.startswith("data: ")]
    return [json.loads(text) for text in data if text != "[DONE]"]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    """A model that calls a tool where it is offered one, and says something else otherwise."""

    def reply(prompt: str) -> str:
        return "Let me see." + (call("get_weather", HERMES, city="Oslo") if "tools:" in prompt else "")

    def model(**_: Any) -> FakeModel:
        return replying_model(reply, HERMES)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("http_server.writing_model", model)
        with serving() as running:
            yield running


WHOLE: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": HELLO}),
    ("/v1/chat/completions", {"messages": HELLO, "max_tokens": 2, "n": 2}),
    ("/v1/chat/completions", {"messages": HELLO, "tools": [CHAT_TOOL]}),
    ("/v1/chat/completions", {"messages": HELLO, "tools": [CHAT_TOOL], "tool_choice": "required"}),
    ("/v1/chat/completions", {"messages": HELLO, "logprobs": True, "top_logprobs": 2}),
    ("/v1/completions", {"prompt": "a"}),
    ("/v1/completions", {"prompt": "a", "logprobs": 1, "echo": True}),
    ("/v1/completions", {"prompt": "a", "echo": True}),  # whose echo is streamed in a chunk of its own
    ("/v1/responses", {"input": "hello"}),
    ("/v1/responses", {"input": "hello", "max_output_tokens": 2}),
    ("/v1/responses", {"input": "hello", "tools": [FLAT_TOOL]}),
    ("/v1/responses", {"input": "hello", "include": [LOGPROBS], "top_logprobs": 2}),
    ("/v1/responses", {"input": "hello", "text": {"format": {"type": "text"}}, "reasoning": {}}),
    ("/v1/messages", {"model": "fake", "messages": HELLO, "max_tokens": 100}),
    ("/v1/messages", {"model": "fake", "messages": HELLO, "max_tokens": 2}),
    ("/v1/messages", {"model": "fake", "messages": HELLO, "max_tokens": 100, "stop_sequences": ["see"]}),
    ("/v1/messages", {"model": "fake", "messages": HELLO, "max_tokens": 100, "tools": [WEATHER]}),
]
WITH_USAGE = {"stream": True, "stream_options": {"include_usage": True}}
STREAMED = [(path, {**body, "stream": True}) for path, body in WHOLE]
STREAMED += [(path, {**body, **WITH_USAGE}) for path, body in WHOLE if path.endswith("completions")]
OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/messages/count_tokens", {"model": "fake", "messages": HELLO}),
    ("/tokenize", {"content": "hello", "with_pieces": True}),
    ("/detokenize", {"tokens": [104]}),
]


def nulls(server: Running, path: str, body: dict[str, Any]) -> set[str]:
    reply = httpx.post(f"{server.url}{path}", json={"temperature": 0, **body}, timeout=30)
    if path not in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"):
        reply = httpx.post(f"{server.url}{path}", json=body, timeout=30)
    assert reply.status_code == 200, reply.text
    return {place for answer in bodies(reply) for place in places(answer)}


def test_no_answer_holds_null_where_its_api_does_not(server: Running) -> None:
    seen: dict[str, set[str]] = {}
    for path, body in [*WHOLE, *STREAMED, *OTHERS]:
        found = nulls(server, path, body)
        assert found <= ALLOWED[path], (path, body)
        seen.setdefault(path, set()).update(found)
    # What the APIs send as null is there, too: clients look for these keys.
    assert seen["/v1/chat/completions"] >= {*CHAT, "usage"} - {"choices.message.content"}
    assert seen["/v1/completions"] >= {"choices.logprobs", "choices.finish_reason", *SCORES}
    assert seen["/v1/responses"] >= {*ASKED, *(f"response.{name}" for name in RESPONSE)}
    assert seen["/v1/messages"] >= {"stop_sequence", "message.stop_reason", "delta.stop_sequence"}


def test_usage_is_null_in_chunks_before_the_last_only_where_it_was_asked_for(server: Running) -> None:
    for path, body in (("/v1/chat/completions", {"messages": HELLO}), ("/v1/completions", {"prompt": "a"})):
        reply = httpx.post(f"{server.url}{path}", json={**body, **WITH_USAGE}, timeout=30)
        *chunks, last = bodies(reply)
        assert all(chunk["usage"] is None for chunk in chunks)
        assert last["usage"]["completion_tokens"]
        reply = httpx.post(f"{server.url}{path}", json={**body, "stream": True}, timeout=30)
        assert not any("usage" in chunk for chunk in bodies(reply))


def test_a_text_block_has_no_key_of_citations(server: Running) -> None:
    body = {"model": "fake", "messages": HELLO, "max_tokens": 100}
    whole = httpx.post(f"{server.url}/v1/messages", json=body, timeout=30).json()
    assert [set(block) for block in whole["content"]] == [{"type", "text"}]
    streamed = bodies(httpx.post(f"{server.url}/v1/messages", json={**body, "stream": True}, timeout=30))
    begun = [event["content_block"] for event in streamed if event["type"] == "content_block_start"]
    assert [set(block) for block in begun] == [{"type", "text"}]


def test_models(server: Running) -> None:
    assert httpx.post(f"{server.url}/tokenize", json={"content": "a"}, timeout=30).status_code == 200
    for path in ("/v1/models", "/v1/models/fake"):
        assert set(places(httpx.get(f"{server.url}{path}", timeout=30).json())) <= ALLOWED["/v1/models"]


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/nowhere"]
)
@pytest.mark.parametrize("body", [{}, {"model": 3}, {"model": "nonesuch", "max_tokens": -1}])
def test_errors(server: Running, path: str, body: dict[str, Any]) -> None:
    reply = httpx.post(f"{server.url}{path}", json=body, timeout=30)
    assert 400 <= reply.status_code < 500
    allowed = set() if path == "/v1/messages" else ALLOWED["error"]
    assert set(places(reply.json())) <= allowed


@pytest.mark.parametrize(
    ("path", "body"), STREAMED, ids=lambda value: value if isinstance(value, str) else ""
)
def test_streams_that_break_off(
    server: Running, path: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert httpx.post(f"{server.url}/tokenize", json={"content": "a"}, timeout=30).status_code == 200
    engine = server.engines["fake"]
    step, left = engine.step, 3

    def failing() -> list[Event]:
        nonlocal left
        left -= 1
        if left < 0:
            raise RuntimeError("it broke")
        return step()

    monkeypatch.setattr(engine, "step", failing)
    reply = httpx.post(f"{server.url}{path}", json=body, timeout=30)
    allowed = ALLOWED[path] | (set() if path == "/v1/messages" else ALLOWED["error"])
    assert {place for answer in bodies(reply) for place in places(answer)} <= allowed
