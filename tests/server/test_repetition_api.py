"""Answers that repeat themselves without end, and sampling as a model recommends it, in all three APIs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from foredraft.engine.request import MIN_REPEATED_TOKENS, REPETITION_CHECK_TOKENS
from foredraft.server.settings import SamplingDefaults
from http_server import Running, serving

PASSAGE = "The image of rain is so delicate. "
MOST = 1500
MESSAGES = [{"role": "user", "content": "Write a poem about rain."}]
ENDED = range(MIN_REPEATED_TOKENS, MIN_REPEATED_TOKENS + len(PASSAGE) + REPETITION_CHECK_TOKENS)
"""Tokens after which it is ended."""


@pytest.fixture(scope="module")
def loop() -> Iterator[Running]:
    """A server whose model says the same for ever."""
    with serving(script=PASSAGE * 100) as running:
        yield running


def post(server: Running, path: str, **body: Any) -> Any:
    reply = httpx.post(f"{server.url}{path}", json={"model": "fake", **body}, timeout=60)
    assert reply.status_code == 200, reply.text
    return reply.json()


@pytest.mark.parametrize("speculate", ["auto", "off"])
def test_an_answer_is_ended_where_that_is_asked_for(loop: Running, speculate: str) -> None:
    body = {"messages": MESSAGES, "max_tokens": MOST, "temperature": 0, "speculate": speculate}
    [whole] = post(loop, "/v1/chat/completions", **body)["choices"]
    assert len(whole["message"]["content"]) == MOST
    assert whole["finish_reason"] == "length"
    assert "stop_reason" not in whole
    [ended] = post(loop, "/v1/chat/completions", **body, stop_repetition=True)["choices"]
    assert len(ended["message"]["content"]) in ENDED
    assert (ended["finish_reason"], ended["stop_reason"]) == ("length", "repetition")
    text = post(
        loop, "/v1/completions", prompt="assistant: ", max_tokens=MOST, temperature=0, stop_repetition=True
    )
    [choice] = text["choices"]
    assert len(choice["text"]) in ENDED
    assert (choice["finish_reason"], choice["stop_reason"]) == ("length", "repetition")


def test_messages_and_responses_say_that_it_was_cut(loop: Running) -> None:
    message = post(
        loop, "/v1/messages", messages=MESSAGES, max_tokens=MOST, temperature=0, stop_repetition=True
    )
    assert message["stop_reason"] == "max_tokens"
    assert len(message["content"][0]["text"]) in ENDED
    response = post(loop, "/v1/responses", input="Hi", temperature=0, stop_repetition=True)
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 40}),
        ("/v1/completions", {"prompt": "Rain", "max_tokens": 40}),
        ("/v1/messages", {"messages": MESSAGES, "max_tokens": 40}),
        ("/v1/responses", {"input": "Rain", "max_output_tokens": 40}),
    ],
)
def test_a_model_is_sampled_as_it_recommends_unless_told_otherwise(path: str, body: dict[str, Any]) -> None:
    def text(server: Running, **more: float) -> str:
        answer = post(server, path, **body, **more)
        choices = answer.get("choices") or answer.get("content") or answer["output"][0]["content"]
        return str(choices[0].get("text") or choices[0]["message"]["content"])

    with serving(recommended={"temperature": 0.0}) as server:
        greedy = text(server, temperature=0)
        assert text(server) == greedy
        assert text(server, temperature=1) != greedy
    chosen = SamplingDefaults(temperature=1.0)
    with serving(recommended={"temperature": 0.0}, sampling=chosen) as server:
        assert text(server) != greedy, "the settings count more than the file"
    with serving() as server:
        assert text(server) != greedy, "1 is the API's default"
