"""`echo` with `logprobs` by OpenAI's client: how likely the prompt's own tokens were."""

from __future__ import annotations

import json
import math
from typing import Any

import httpx
import openai
import pytest

from foredraft import Engine, SamplingParams
from http_server import Running, client_of, serving, writing_model

PROMPT = "once upon a time"
MOST = 32


def complete(client: openai.OpenAI, **options: Any) -> Any:
    given = {"prompt": PROMPT, "temperature": 0, "logprobs": 2, "echo": True, "max_tokens": 5, **options}
    return client.completions.create(model="fake", **given)


def streamed(client: openai.OpenAI, **options: Any) -> tuple[dict[int, Any], Any]:
    """(what each answer's chunks come to, the usage)."""
    answers: dict[int, Any] = {}
    usage: Any = None
    for chunk in complete(client, stream=True, stream_options={"include_usage": True}, **options):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            found = answers.setdefault(choice.index, {"text": "", "lists": {}, "finish": None})
            found["text"] += choice.text
            found["finish"] = choice.finish_reason or found["finish"]
            for name, values in (choice.logprobs.to_dict() if choice.logprobs else {}).items():
                found["lists"][name] = found["lists"].get(name, []) + values
    return answers, usage


def test_decoding_the_same_tokens_gives_the_same_numbers(client: openai.OpenAI) -> None:
    with Engine(writing_model()) as engine:
        alone = engine.generate(PROMPT, SamplingParams(max_tokens=60, logprobs=2))
    answer = complete(client, prompt=PROMPT + alone.text, max_tokens=0).choices[0]
    start = len(PROMPT)
    assert answer.logprobs.token_logprobs[start:] == [entry.logprob for entry in alone.logprobs]
    tops = [[value for _, value in entry.top] for entry in alone.logprobs]
    assert [list(top.values()) for top in answer.logprobs.top_logprobs[start:]] == tops


def test_the_prompt_comes_with_its_numbers_and_then_the_answer(client: openai.OpenAI) -> None:
    plain = complete(client, echo=False).choices[0]
    answer = complete(client).choices[0]
    assert answer.text == PROMPT + plain.text
    lists = answer.logprobs
    assert lists.tokens == list(answer.text)
    assert lists.token_logprobs[0] is None
    assert lists.top_logprobs[0] is None
    assert all(value <= 0 for value in lists.token_logprobs[1:])
    assert lists.text_offset == list(range(len(answer.text)))
    assert lists.token_logprobs[len(PROMPT) :] == plain.logprobs.token_logprobs
    assert lists.top_logprobs[len(PROMPT) :] == plain.logprobs.top_logprobs


def test_a_token_stands_beside_its_alternatives(client: openai.OpenAI) -> None:
    """As many as were asked for, and the token's own where it is none of them."""
    lists = complete(client, max_tokens=0).choices[0].logprobs
    for token, value, top in list(zip(lists.tokens, lists.token_logprobs, lists.top_logprobs, strict=True))[
        1:
    ]:
        assert top[token] == value
        assert len(top) in (2, 3)
        assert sum(map(math.exp, top.values())) <= 1 + 1e-9
    lists = complete(client, max_tokens=0, logprobs=0).choices[0].logprobs
    assert lists.top_logprobs[1:] == [
        {token: value} for token, value in list(zip(lists.tokens, lists.token_logprobs, strict=True))[1:]
    ]


@pytest.mark.parametrize("logprobs", [None, 1])
def test_scoring_only(client: openai.OpenAI, logprobs: int | None) -> None:
    answer = complete(client, max_tokens=0, logprobs=logprobs)
    choice = answer.choices[0]
    assert choice.text == PROMPT
    assert choice.finish_reason == "length"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(PROMPT), 0)
    assert (choice.logprobs is None) == (logprobs is None)
    assert answer.timings["predicted_n"] == 0


def test_as_an_evaluation_asks_it(client: openai.OpenAI) -> None:
    """Token ids, several prompts, one token beside them: lm-evaluation-harness leaves that last one out."""
    context, continuation = list(b"the cat sat on "), list(b"the mat")
    prompts = [[*context, *continuation], [*context, *continuation[::-1]]]
    answer = complete(client, prompt=prompts, max_tokens=1, logprobs=1, seed=1234)
    for prompt, choice in zip(prompts, answer.choices, strict=True):
        lists = choice.logprobs
        assert "".join(lists.tokens[: len(prompt)]) == bytes(prompt).decode()
        assert len(lists.token_logprobs) == len(prompt) + 1
        assert sum(lists.token_logprobs[len(context) : -1]) < 0
        tops: list[dict[str, float]] = lists.top_logprobs[len(context) : -1]
        assert [max(top.values()) <= 0 for top in tops] == [True] * len(continuation)
    assert answer.usage.prompt_tokens == sum(map(len, prompts))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_tokens": 0},
        {"prompt": ["one two", "three"], "n": 2, "seed": 3, "temperature": 1.0},
        {"prompt": "once upon " * 40, "logprobs": 5},
        {"prompt": "x", "max_tokens": 3},
    ],
)
def test_streams_come_to_the_same(client: openai.OpenAI, options: dict[str, Any]) -> None:
    whole = complete(client, **options)
    answers, usage = streamed(client, **options)
    assert len(answers) == len(whole.choices)
    for choice in whole.choices:
        found = answers[choice.index]
        assert (found["text"], found["finish"]) == (choice.text, choice.finish_reason)
        assert found["lists"] == choice.logprobs.to_dict()
    assert usage.completion_tokens == whole.usage.completion_tokens


def test_the_prompt_is_computed_again_and_nothing_says_it_was_cached(server: Running) -> None:
    with serving(sequences=1) as running, client_of(running) as client:
        assert complete(client, echo=False, logprobs=None).usage.prompt_tokens_details.cached_tokens == 0
        scored = complete(client)
        assert scored.usage.prompt_tokens_details.cached_tokens == 0
        assert None not in scored.choices[0].logprobs.token_logprobs[1:]
        again = complete(client, echo=False, logprobs=None)
        assert again.usage.prompt_tokens_details.cached_tokens == len(PROMPT) - 1
    assert server.url


def test_scored_tokens_are_no_generated_ones_in_the_metrics() -> None:
    with serving() as running, client_of(running) as client:
        complete(client, max_tokens=0)
        text = httpx.get(f"{running.url}/metrics").text
    assert 'foredraft_generation_tokens_total{model="fake"} 0.0' in text
    assert 'foredraft_time_to_first_token_seconds_count{model="fake"}' not in text
    assert 'foredraft_inter_token_latency_seconds_count{model="fake"}' not in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"echo": False, "max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 0, "extra_body": {"min_tokens": 1}}, "min_tokens"),
        ({"max_tokens": -2}, "max_tokens"),
        ({"suffix": "the end"}, "suffix"),
        ({"logprobs": 21}, "logprobs"),
    ],
)
def test_what_cannot_be_scored_is_refused(client: openai.OpenAI, options: Any, message: str) -> None:
    with pytest.raises(openai.BadRequestError, match=message) as caught:
        complete(client, **options)
    assert caught.value.type == "invalid_request_error"


def test_a_character_in_parts_is_where_it_begins(client: openai.OpenAI) -> None:
    lists = complete(client, prompt="aé", max_tokens=0).choices[0].logprobs
    assert lists.text_offset == [0, 1, 1]
    assert json.dumps(lists.to_dict())
