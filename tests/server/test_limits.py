"""How many answers and stop strings a request may have is what the settings say, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import anthropic
import httpx
import openai
import pytest

from foredraft.server.app import build_app
from foredraft.server.pool import ModelPool
from foredraft.server.settings import Limits, ModelSettings, ServerSettings
from http_server import Running, client_of, serving

MOST = 20
BIASED = 20_000
LIMITS = Limits(max_n=MOST, max_stop=MOST, max_waiting=30, max_logit_bias=BIASED)
TOGETHER = LIMITS.max_waiting + ModelSettings(path="fake").sequences
STOPS = [f"never{number}" for number in range(MOST + 1)]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with serving(settings=ServerSettings(limits=LIMITS)) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[openai.OpenAI]:
    with client_of(server) as made:
        yield made


def ask(client: openai.OpenAI, **options: Any) -> Any:
    given: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, **options}
    return client.chat.completions.create(model="fake", **given)


def complete(client: openai.OpenAI, **options: Any) -> Any:
    return client.completions.create(model="fake", **{"prompt": "hi", "max_tokens": 2, **options})


def respond(client: openai.OpenAI, *, stop: list[str]) -> Any:
    given: dict[str, Any] = {"input": "hi", "max_output_tokens": 2, "extra_body": {"stop": stop}}
    return client.responses.create(model="fake", **given)


def test_as_many_answers_as_the_settings_say(client: openai.OpenAI) -> None:
    assert len(ask(client, n=MOST).choices) == MOST
    assert len(complete(client, n=MOST).choices) == MOST


@pytest.mark.parametrize("way", [ask, complete])
def test_and_not_one_more(client: openai.OpenAI, way: Any) -> None:
    with pytest.raises(openai.BadRequestError, match=f"n: {MOST + 1} answers at once are too many") as caught:
        way(client, n=MOST + 1)
    assert caught.value.type == "invalid_request_error"
    assert caught.value.code == "invalid_request"


def test_several_prompts_are_as_many_requests(client: openai.OpenAI) -> None:
    """All of one request's answers run or wait at once, so together they have to fit where requests wait."""
    prompts = [f"prompt {number}" for number in range(TOGETHER + 1)]
    assert len(complete(client, prompt=prompts[:-1]).choices) == TOGETHER
    with pytest.raises(openai.BadRequestError, match=f"{TOGETHER + 1} answers at once are too many"):
        complete(client, prompt=prompts)
    with pytest.raises(openai.BadRequestError, match=f"{TOGETHER + 2} answers at once are too many"):
        complete(client, prompt=prompts[: TOGETHER // 2 + 1], n=2)


@pytest.mark.parametrize("way", [ask, complete, respond])
def test_as_many_stop_strings_as_the_settings_say(client: openai.OpenAI, way: Any) -> None:
    assert way(client, stop=STOPS[:MOST]).id
    with pytest.raises(openai.BadRequestError, match=f"stop: {MOST + 1} are too many") as caught:
        way(client, stop=STOPS)
    assert caught.value.code == "invalid_request"


def test_and_as_many_biased_tokens(client: openai.OpenAI) -> None:
    bias = {str(token): -1 for token in range(BIASED + 1)}
    with pytest.raises(openai.BadRequestError, match=f"logit_bias: {BIASED + 1} tokens are too many"):
        ask(client, logit_bias=bias)
    del bias["0"]
    with pytest.raises(openai.BadRequestError, match="258"):
        ask(client, logit_bias=bias)
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, logit_bias={**bias, "7": True, "8": "much"})
    assert caught.value.param == "logit_bias.7"


def test_for_anthropic_s_clients_too(server: Running) -> None:
    given: Any = {"model": "fake", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        assert client.messages.create(**given, stop_sequences=STOPS[:MOST]).id
        with pytest.raises(anthropic.BadRequestError, match="are too many"):
            client.messages.create(**given, stop_sequences=STOPS)


def bound(document: Any, body: str, field: str, kind: str, key: str) -> int:
    """What the document says is the most of a field."""
    ways = document["components"]["schemas"][body]["properties"][field]["anyOf"]
    (most,) = [way[key] for way in ways if way["type"] == kind]
    return int(most)


def test_the_document_says_what_the_settings_say(server: Running) -> None:
    document = httpx.get(f"{server.url}/openapi.json").json()
    for body in ("ChatRequest", "CompletionRequest"):
        assert bound(document, body, "n", "integer", "maximum") == MOST
        assert bound(document, body, "logit_bias", "object", "maxProperties") == BIASED
    for body in ("ChatRequest", "CompletionRequest", "ResponseRequest"):
        assert bound(document, body, "stop", "array", "maxItems") == MOST
    assert bound(document, "MessagesRequest", "stop_sequences", "array", "maxItems") == MOST


def test_the_document_follows_settings_that_change() -> None:
    settings = ServerSettings(models={"fake": ModelSettings(path="fake")})
    pool = ModelPool(settings, load=lambda _: pytest.fail("a document needs no model"))
    app = build_app(pool)
    assert bound(app.openapi(), "ChatRequest", "n", "integer", "maximum") == 8
    pool.use(replace(settings, limits=LIMITS))
    assert bound(app.openapi(), "ChatRequest", "n", "integer", "maximum") == MOST
