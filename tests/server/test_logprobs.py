"""Log-probabilities by OpenAI's client: to the last bit those of an answer that nothing was drafted for."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

import http_server
from foredraft import Engine, SamplingParams
from foredraft.config import ModelOptions
from foredraft.registry import backend_for
from http_server import client_of, serving, writing_model

PROMPT = "say something"
MESSAGES = [{"role": "user", "content": PROMPT}]
OFF = {"speculate": "off"}
WAYS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.8, "seed": 5},
    {"temperature": 1.2, "seed": 9, "n": 3, "presence_penalty": 0.5},
    {"stop": ["never#"], "frequency_penalty": 0.1},
    {"logit_bias": {"101": -100, "122": 5}, "max_tokens": 60},
]


@pytest.fixture(scope="module")
def drafting() -> Iterator[openai.OpenAI]:
    with (
        serving(speculate="suffix:min=1;recycle;ngram-simple:n=2,m=8") as running,
        client_of(running) as made,
    ):
        yield made


def chat(
    client: openai.OpenAI, *, top: int, stream: bool, **options: Any
) -> tuple[dict[int, list[Any]], int]:
    """(each answer's log-probabilities, accepted draft tokens)."""
    given = {"messages": MESSAGES, "max_tokens": 150, "temperature": 0, **options}
    given |= {"logprobs": True, "top_logprobs": top}
    if stream:
        given |= {"stream": True, "stream_options": {"include_usage": True}}
    create: Any = client.chat.completions.create
    answer = create(model="fake", **given)
    entries: dict[int, list[Any]] = {}
    accepted = 0
    for part in answer if stream else [answer]:
        for choice in part.choices:
            content = choice.logprobs.content if choice.logprobs else []
            entries.setdefault(choice.index, []).extend(entry.to_dict() for entry in content)
        accepted += part.timings["draft_n_accepted"] if not stream or not part.choices else 0
    return entries, accepted


def complete(client: openai.OpenAI, *, top: int, stream: bool, **options: Any) -> tuple[dict[int, Any], int]:
    """The same for text completions, as the four lists that their form has."""
    given = {"max_tokens": 150, "temperature": 0, **options, "logprobs": top}
    if stream:
        given |= {"stream": True, "stream_options": {"include_usage": True}}
    answer: Any = client.completions.create(model="fake", prompt=PROMPT, **given)
    entries: dict[int, Any] = {}
    accepted = 0
    for part in answer if stream else [answer]:
        for choice in part.choices:
            lists = entries.setdefault(choice.index, {})
            for name, values in (choice.logprobs.to_dict() if choice.logprobs else {}).items():
                lists[name] = lists.get(name, []) + values
        accepted += part.timings["draft_n_accepted"] if not stream or not part.choices else 0
    return entries, accepted


@pytest.mark.parametrize("ask", [chat, complete])
@pytest.mark.parametrize("way", WAYS)
def test_drafting_changes_no_log_probability(drafting: openai.OpenAI, ask: Any, way: dict[str, Any]) -> None:
    """Streamed or not: four answers that must be equal, of which two were drafted."""
    found = [
        ask(drafting, top=5, stream=stream, **way, extra_body=body)
        for stream in (False, True)
        for body in ({}, OFF)
    ]
    (whole, drafted), (plain, none), (streamed, drafted_too), (plainly_streamed, _) = found
    assert drafted > 0 < drafted_too
    assert none == 0
    assert whole == plain == streamed == plainly_streamed
    assert len(whole) == way.get("n", 1)
    assert all(whole.values())


@pytest.mark.parametrize("top", [0, 1, 20])
def test_a_chat_s_numbers_are_the_model_s(drafting: openai.OpenAI, top: int) -> None:
    """Each is the logarithm of a softmax, and the token's own stands among its alternatives."""
    entries, accepted = chat(drafting, top=top, stream=False)
    with Engine(writing_model()) as engine:
        alone = engine.generate(MESSAGES, SamplingParams(max_tokens=150, logprobs=top))
    assert accepted > 0
    assert [entry["logprob"] for entry in entries[0]] == [entry.logprob for entry in alone.logprobs]
    for entry, expected in zip(entries[0], alone.logprobs, strict=True):
        assert [other["logprob"] for other in entry["top_logprobs"]] == [value for _, value in expected.top]
        assert len(entry["top_logprobs"]) == top
        assert sum(math.exp(other["logprob"]) for other in entry["top_logprobs"]) <= 1 + 1e-9
        if top:
            best = entry["top_logprobs"][0]  # greedy: the token is the likeliest
            assert (best["token"], best["logprob"]) == (entry["token"], entry["logprob"])


@pytest.mark.parametrize("top", [0, 1, 5])
def test_a_completion_s_numbers_are_the_model_s(drafting: openai.OpenAI, top: int) -> None:
    lists, accepted = complete(drafting, top=top, stream=False)
    with Engine(writing_model()) as engine:
        alone = engine.generate(PROMPT, SamplingParams(max_tokens=150, logprobs=top))
    assert accepted > 0
    assert lists[0]["token_logprobs"] == [entry.logprob for entry in alone.logprobs]
    values = [list(shown.values()) for shown in lists[0]["top_logprobs"]]
    # Greedy: the token is the likeliest, and stands there too if no alternatives are asked for.
    assert values == [[value for _, value in entry.top] or [entry.logprob] for entry in alone.logprobs]
    assert "".join(lists[0]["tokens"]) == alone.text


def test_an_answer_in_a_schema_has_the_unconstrained_numbers(drafting: openai.OpenAI) -> None:
    """With a constraint they still are the model's own, drafted or not."""
    schema = {"type": "object", "properties": {"size": {"enum": ["small", "large"]}}, "required": ["size"]}
    form = {
        "type": "json_schema",
        "json_schema": {"name": "a", "schema": {**schema, "additionalProperties": False}},
    }
    with serving(speculate="grammar") as running, client_of(running) as client:
        drafted, accepted = chat(client, top=2, stream=True, response_format=form)
        plain, _ = chat(client, top=2, stream=False, response_format=form, extra_body=OFF)
    assert accepted > 0
    assert drafted == plain
    assert all(entry["logprob"] < 0 for entry in drafted[0])


@pytest.mark.model
def test_a_real_model_s_numbers_are_equal_too(
    monkeypatch: pytest.MonkeyPatch, model_path: Path, shared_cache: Path
) -> None:
    options = ModelOptions(context_length=512, sequences=1, threads=1, gpu_layers=0, cache_dir=shared_cache)
    monkeypatch.setattr(
        http_server, "writing_model", lambda: backend_for(model_path).load(model_path, options)
    )
    text = [
        {"role": "user", "content": "Repeat: the cat sat on the mat, the cat sat on the mat, the cat sat"}
    ]
    with serving(speculate="suffix:min=1;recycle:min-p=0") as running, client_of(running) as client:
        for way in WAYS[:2]:
            given: dict[str, Any] = {**way, "messages": text, "top": 5, "max_tokens": 40}
            drafted, accepted = chat(client, stream=True, **given)
            plain, none = chat(client, stream=False, **given, extra_body=OFF)
            assert drafted == plain
            assert accepted > 0 == none
