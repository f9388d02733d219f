"""What comes together is one piece of a stream, and says the same as many."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from http_server import Running, serving

MESSAGES = [{"role": "user", "content": "write something"}]
TOKENS = 60
COMMON: dict[str, Any] = {"model": "fake", "temperature": 0, "stream": True}

REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": MESSAGES,
        "max_tokens": TOKENS,
        "logprobs": True,
        "top_logprobs": 2,
        "n": 2,
    },
    "/v1/completions": {"prompt": "write", "max_tokens": TOKENS, "logprobs": 2, "echo": True},
    "/v1/responses": {
        "input": "write something",
        "max_output_tokens": TOKENS,
        "include": ["message.output_text.logprobs"],
    },
    "/v1/messages": {"messages": MESSAGES, "max_tokens": TOKENS},
}


def pieces(running: Running, path: str) -> list[dict[str, Any]]:
    """The events of a stream that hold text, without what differs between two of the same."""
    reply = httpx.post(running.url + path, json=COMMON | REQUESTS[path], timeout=30)
    assert reply.status_code == 200, reply.text
    lines = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: ")]
    found = [json.loads(line) for line in lines if line != "[DONE]"]
    return [event for event in found if any(text_and_scores(event))]


def text_and_scores(event: dict[str, Any]) -> tuple[str, list[Any]]:
    """What an event of any of the APIs adds to an answer's text, and its log-probabilities."""
    for choice in event.get("choices", ()):
        scores = choice["logprobs"] or {}
        text = choice["delta"].get("content") or "" if "delta" in choice else choice["text"]
        return text, scores.get("content") or list(zip(*scores.values(), strict=True)) if scores else []
    if event.get("type") == "response.output_text.delta":
        return event["delta"], event["logprobs"]
    if event.get("type") == "content_block_delta":
        return event["delta"]["text"], []
    return "", []


def whole(events: list[dict[str, Any]]) -> dict[int, tuple[str, list[Any]]]:
    """Each answer's text and log-probabilities, put together."""
    answers: dict[int, tuple[str, list[Any]]] = {}
    for event in events:
        index = next((choice["index"] for choice in event.get("choices", ())), 0)
        text, scores = answers.get(index, ("", []))
        more_text, more_scores = text_and_scores(event)
        answers[index] = text + more_text, scores + more_scores
    return answers


@pytest.fixture(scope="module")
def short_rounds() -> dict[str, list[dict[str, Any]]]:
    with serving() as running:
        return {path: pieces(running, path) for path in REQUESTS}


@pytest.mark.parametrize("path", REQUESTS)
@pytest.mark.usefixtures("long_rounds")
def test_what_comes_together_is_one_piece(short_rounds: dict[str, list[dict[str, Any]]], path: str) -> None:
    few = short_rounds[path]
    with serving(speculate="off") as running:
        many = pieces(running, path)
    assert whole(few) == whole(many)
    texts = [len(text) for text, _ in whole(few).values()]
    assert min(texts) > 20
    assert 2 * len(few) < len(many)


@pytest.mark.parametrize("path", REQUESTS)
def test_clients_that_read_line_by_line_get_whole_events(path: str) -> None:
    """httpx and requests take these characters for the end of a line, which events do not."""
    said = "one\u2028two\u2029three\x85four"
    asked = {"messages": MESSAGES, "prompt": "assistant: ", "input": "write", "max_tokens": 50}
    body = COMMON | {name: value for name, value in asked.items() if name in REQUESTS[path]}
    with serving(script=said) as running, httpx.stream("POST", running.url + path, json=body) as reply:
        lines = [line.removeprefix("data: ") for line in reply.iter_lines() if line.startswith("data: ")]
    events = [json.loads(line) for line in lines if line != "[DONE]"]
    assert "".join(text_and_scores(event)[0] for event in events) == said
