"""The real OpenAI client against the server, streaming and not."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from foredraft import Engine, SamplingParams
from http_server import Running, writing_model

MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "say something"}]


def chat(client: openai.OpenAI, **options: Any) -> Any:
    return client.chat.completions.create(
        **{"model": "fake", "messages": MESSAGES, "max_tokens": 40, "temperature": 0, **options}
    )


def streamed(client: openai.OpenAI, **options: Any) -> tuple[dict[int, str], list[Any]]:
    """(the text of each choice, all chunks)."""
    chunks = list(chat(client, stream=True, **options))
    texts: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
    return texts, chunks


def alone(**params: Any) -> str:
    with Engine(writing_model()) as engine:
        return engine.generate(MESSAGES, SamplingParams(**{"max_tokens": 40, **params})).text


def test_the_answer_is_the_engine_s(client: openai.OpenAI) -> None:
    answer = chat(client)
    assert answer.object == "chat.completion"
    assert answer.model == "fake"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content == alone()
    assert answer.choices[0].finish_reason in ("length", "stop")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 0.9, "seed": 3}, {"n": 3, "temperature": 0.9, "seed": 5}]
)
def test_streamed_text_is_the_whole_answer(client: openai.OpenAI, options: dict[str, Any]) -> None:
    whole = chat(client, **options)
    texts, chunks = streamed(client, **options)
    assert texts == {choice.index: choice.message.content for choice in whole.choices}
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"


def test_seeded_answers_are_those_of_their_seeds(client: openai.OpenAI) -> None:
    answers = chat(client, n=3, temperature=0.9, seed=5).choices
    assert [answer.message.content for answer in answers] == [
        alone(temperature=0.9, seed=5 + i) for i in range(3)
    ]


def test_usage_comes_in_the_stream_when_asked_for(client: openai.OpenAI) -> None:
    _, chunks = streamed(client, stream_options={"include_usage": True})
    assert [chunk.usage is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens > 0
    _, chunks = streamed(client)
    assert all(chunk.usage is None for chunk in chunks)


def test_log_probabilities_are_those_of_plain_decoding(client: openai.OpenAI) -> None:
    answer = chat(client, logprobs=True, top_logprobs=2).choices[0]
    with Engine(writing_model()) as engine:
        plain = engine.generate(MESSAGES, SamplingParams(max_tokens=40, logprobs=2))
    assert [entry.logprob for entry in answer.logprobs.content] == [entry.logprob for entry in plain.logprobs]
    assert all(len(entry.top_logprobs) == 2 for entry in answer.logprobs.content)
    assert (
        bytes(b for entry in answer.logprobs.content for b in entry.bytes).decode() == answer.message.content
    )


def test_what_was_drafted_is_said(client: openai.OpenAI) -> None:
    answer = chat(client, max_tokens=300)
    speculation = answer.model_extra["speculation"]
    assert speculation["exact"] is True
    assert speculation["rounds"] < answer.usage.completion_tokens
    assert answer.model_extra["timings"]["draft_n_accepted"] > 0
    assert answer.usage.completion_tokens_details.accepted_prediction_tokens > 0


def test_a_prediction_is_drafted_from(client: openai.OpenAI) -> None:
    text = alone(max_tokens=60)
    answer = chat(client, max_tokens=60, prediction={"type": "content", "content": text})
    assert answer.choices[0].message.content == text


@pytest.mark.parametrize("several", [False, True])
def test_stop_strings_end_the_text_before_them(client: openai.OpenAI, several: bool) -> None:
    stop = alone()[10:12]
    answer = chat(client, stop=["zzzz", stop] if several else stop).choices[0]
    assert answer.finish_reason == "stop"
    assert answer.message.content == alone(stop=(stop,))
    assert len(answer.message.content) <= 10


def test_text_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="other", prompt="once upon", max_tokens=20, temperature=0, echo=True
    )
    assert answer.choices[0].text.startswith("once upon")
    chunks = list(
        client.completions.create(
            model="other", prompt="once upon", max_tokens=20, temperature=0, stream=True
        )
    )
    assert "once upon" + "".join(c.text for chunk in chunks for c in chunk.choices) == answer.choices[0].text


def test_several_prompts_at_once(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="fake", prompt=["one", "two"], max_tokens=10, temperature=0, logprobs=1
    )
    singles = [
        client.completions.create(model="fake", prompt=prompt, max_tokens=10, temperature=0).choices[0].text
        for prompt in ("one", "two")
    ]
    assert [choice.text for choice in answer.choices] == singles
    assert all("".join(c.logprobs.tokens or ()) == c.text for c in answer.choices if c.logprobs)


def test_models(client: openai.OpenAI, server: Running) -> None:
    assert [model.id for model in client.models.list()] == ["fake", "other"]
    assert client.models.retrieve("fake").id == "fake"
    with pytest.raises(openai.NotFoundError, match="There is no model 'nonesuch'"):
        client.models.retrieve("nonesuch")
    with pytest.raises(openai.NotFoundError, match="Available: fake, other"):
        chat(client, model="nonesuch")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"extra_body": {"max_token": 3}}, "Unknown parameter: 'max_token'. Did you mean 'max_tokens'"),
        ({"temperature": 3}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "king", "content": "x"}]}, "role"),
        ({"messages": [{"role": "user", "content": None}]}, "no content"),
        ({"top_logprobs": 3}, "top_logprobs needs logprobs"),
        ({"logit_bias": {"a": 1}}, "token ids"),
        ({"logit_bias": {"999999": 1}}, "999999"),
        ({"n": 100}, "n:"),
        ({"stop": [""]}, "stop"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
def test_what_cannot_be_done_is_refused(client: openai.OpenAI, options: dict[str, Any], message: str) -> None:
    with pytest.raises(openai.BadRequestError, match=message) as caught:
        chat(client, **options)
    assert caught.value.type == "invalid_request_error"


def test_a_prompt_that_does_not_fit_says_so(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, messages=[{"role": "user", "content": "x" * 5000}])
    assert caught.value.code == "context_length_exceeded"
    assert "Shorten the prompt: the model was not trained for a larger context." in caught.value.message
