"""`stream_options.include_origins`: which characters of a streamed answer a drafter proposed."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import httpx
import pytest

from foredraft import Engine, SamplingParams
from foredraft.types import TokenEvent
from http_server import Running, writing_model

MESSAGES = [{"role": "user", "content": "say something"}]
WANTED = {"include_origins": True, "include_usage": True}


def body(**options: Any) -> dict[str, Any]:
    return {"model": "fake", "messages": MESSAGES, "max_tokens": 80, "temperature": 0, **options}


def streamed(server: Running, **options: Any) -> list[dict[str, Any]]:
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body(stream=True, **options), timeout=30)
    assert answer.status_code == 200, answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def refusal(server: Running, path: str = "/v1/chat/completions", **options: Any) -> str:
    answer = httpx.post(server.url + path, json=body(**options), timeout=30)
    assert answer.status_code == 400, answer.text
    message: str = answer.json()["error"]["message"]
    return message


def test_the_runs_are_those_of_the_answer_s_tokens(server: Running) -> None:
    with Engine(writing_model()) as engine:
        params = SamplingParams(max_tokens=80)
        tokens = [event for event in engine.stream(MESSAGES, params=params) if isinstance(event, TokenEvent)]
    *chunks, last = streamed(server, stream_options=WANTED)
    text, origins = "", []
    for chunk in chunks:
        (choice,) = chunk["choices"]
        content = choice["delta"].get("content", "")
        runs = choice.get("origins", [])
        assert sum(count for _, count in runs) == len(content)
        assert all(one[0] != other[0] for one, other in pairwise(runs))
        text += content
        origins += [origin for origin, count in runs for _ in range(count)]
    assert text == "".join(event.text for event in tokens)
    accepted = sum(drafter["accepted"] for drafter in last["speculation"]["drafters"].values())
    assert len(origins) - origins.count("target") == accepted > 0
    assert set(origins) == {"target", *last["speculation"]["drafters"]} - {
        name for name, drafter in last["speculation"]["drafters"].items() if not drafter["accepted"]
    }
    assert last["timings"]["predicted_n"] == last["usage"]["completion_tokens"]


@pytest.mark.parametrize("options", [{"n": 3}, {"stop": ["e"]}, {"logprobs": True, "top_logprobs": 1}])
def test_the_runs_add_up_with_other_fields(server: Running, options: dict[str, Any]) -> None:
    with_runs = 0
    for chunk in streamed(server, stream_options={"include_origins": True}, **options):
        for choice in chunk["choices"]:
            content = choice["delta"].get("content", "")
            assert sum(count for _, count in choice.get("origins", [])) == len(content)
            with_runs += "origins" in choice
    assert with_runs


@pytest.mark.parametrize("options", [None, {}, {"include_origins": False}, {"include_origins": None}])
def test_nothing_is_said_of_origins_unasked(server: Running, options: dict[str, Any] | None) -> None:
    chunks = streamed(server, stream_options=options)
    assert not any("origins" in choice for chunk in chunks for choice in chunk["choices"])


def test_origins_are_for_streams(server: Running) -> None:
    message = refusal(server, stream_options={"include_origins": True})
    assert message.startswith("stream_options needs stream to be true.")
    assert "include_origins" in refusal(server, stream=True, stream_options={"include_origins": "yes"})
