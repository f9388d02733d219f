"""The real Anthropic client against the server, streaming and not."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

import anthropic
import httpx
import numpy as np
import pytest

import http_server
from foredraft import Engine, SamplingParams
from foredraft.server.anthropic.stops import StopFinder
from foredraft.server.usage import anthropic_usage
from foredraft.testing import FakeModel, FakeTokenizer, markov_logits
from foredraft.types import Logits, Rows, TokenEvent, Usage
from http_server import LETTERS, Running, serving, writing_model

MESSAGES = [{"role": "user", "content": "say something"}]
JSON = {"content-type": "application/json"}


def client_of(running: Running) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=running.url, api_key="none", max_retries=0, timeout=30)


@pytest.fixture
def claude(server: Running) -> Iterator[anthropic.Anthropic]:
    with client_of(server) as made:
        yield made


def request(**options: Any) -> dict[str, Any]:
    """A greedy request. This client has no parameter for the temperature any more."""
    extra = {"temperature": 0, **options.pop("extra_body", {})}
    return {"model": "fake", "messages": MESSAGES, "max_tokens": 40, **options, "extra_body": extra}


def create(claude: anthropic.Anthropic, **options: Any) -> Any:
    return claude.messages.create(**request(**options))


def alone(prompt: Any = MESSAGES, model: FakeModel | None = None, **params: Any) -> str:
    with Engine(model or writing_model()) as engine:
        return engine.generate(prompt, SamplingParams(**{"max_tokens": 40, **params})).text


def reading_model() -> FakeModel:
    """Its text depends on every token of the prompt: other prompts give other texts."""
    chain = markov_logits(258, order=200, scale=3.0)

    def logits(prefix: Sequence[int]) -> Logits:
        row = np.full(258, -50.0, np.float32)
        row[LETTERS] = chain(prefix)[LETTERS]
        return row

    return FakeModel(258, logits=logits, sequences=4, context_length=4096)


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[anthropic.Anthropic]:
    """A client of a server with such a model."""
    monkeypatch.setattr(http_server, "writing_model", reading_model)
    with serving() as running, client_of(running) as made:
        yield made


def read(prompt: Any) -> str:
    return alone(prompt, reading_model())


def test_the_answer_is_the_engine_s(claude: anthropic.Anthropic) -> None:
    answer = create(claude)
    assert (answer.type, answer.role, answer.model) == ("message", "assistant", "fake")
    assert answer.id.startswith("msg_")
    assert [block.type for block in answer.content] == ["text"]
    assert answer.content[0].text == alone()
    assert (answer.stop_reason, answer.stop_sequence) == ("max_tokens", None)
    assert answer.usage.output_tokens == 40


def test_streamed_events_make_the_whole_answer(claude: anthropic.Anthropic) -> None:
    whole = create(claude, max_tokens=120)
    events = list(create(claude, max_tokens=120, stream=True))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    text = "".join(event.delta.text for event in events if event.type == "content_block_delta")
    assert text == whole.content[0].text
    assert events[0].message.usage.input_tokens == len(b"user: say something\nassistant: ")
    assert events[-2].delta.stop_reason == whole.stop_reason
    assert events[-2].usage.output_tokens == whole.usage.output_tokens
    assert events[-2].model_extra["speculation"]["rounds"] < whole.usage.output_tokens


def test_the_stream_helper_builds_the_same_message(claude: anthropic.Anthropic) -> None:
    whole = create(claude)
    with claude.messages.stream(**request()) as stream:
        text = "".join(stream.text_stream)
        message: Any = stream.get_final_message()
    assert text == message.content[0].text == whole.content[0].text
    assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", whole.usage.output_tokens)


def test_what_was_drafted_is_said(claude: anthropic.Anthropic) -> None:
    answer = create(claude, max_tokens=300)
    assert answer.model_extra["speculation"]["exact"] is True
    assert answer.model_extra["speculation"]["rounds"] < answer.usage.output_tokens
    assert answer.model_extra["timings"]["draft_n_accepted"] > 0


# --- how an answer ends --------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
def test_the_stop_sequence_that_ended_the_text_is_named(claude: anthropic.Anthropic, stream: bool) -> None:
    full = alone()
    stop = full[10:13]
    expected = alone(stop=(stop,))
    options = request(stop_sequences=["zzzz", stop, stop + "!"])
    if stream:
        with claude.messages.stream(**options) as events:
            answer: Any = events.get_final_message()
    else:
        answer = claude.messages.create(**options)
    assert answer.content[0].text == expected
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", stop)


def test_an_end_of_the_model_s_own_is_the_end_of_the_turn() -> None:
    with serving(end=20.0) as running, client_of(running) as claude:
        answer = create(claude, stop_sequences=["a"])
    assert (answer.stop_reason, answer.stop_sequence) == ("end_turn", None)
    assert answer.content[0].text == ""


def test_a_full_context_is_told_from_max_tokens() -> None:
    with serving(context_length=64, end=-40.0) as running, client_of(running) as claude:
        answer = create(claude, max_tokens=500)
    assert answer.stop_reason == "model_context_window_exceeded"
    assert answer.usage.output_tokens < 500


@pytest.mark.parametrize(
    ("shown", "held", "stops", "found"),
    [
        ("one two", "", ["two", "three"], None),
        ("one ", "two", ["t", "two", "three"], "t"),
        ("one ", "twofold", ["three", "twofold", "two"], "two"),
        ("one ", "two", ["one", "twofold"], None),
        ("", "äö", ["äö"], "äö"),
    ],
)
def test_finding_the_stop_sequence(shown: str, held: str, stops: list[str], found: str | None) -> None:
    finder = StopFinder(FakeTokenizer(), stops)
    for letter in shown:
        finder.feed(TokenEvent(0, ord(letter), letter, "target"))
    for byte in held.encode():
        finder.feed(TokenEvent(0, byte, "", "target"))
    assert finder.found() == found


# --- prompts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("system", ["Be brief.", [{"type": "text", "text": "Be brief."}]])
def test_the_system_prompt_comes_first(reader: anthropic.Anthropic, system: Any) -> None:
    expected = read([{"role": "system", "content": "Be brief."}, *MESSAGES])
    assert create(reader, system=system).content[0].text == expected
    assert expected != read(MESSAGES)


def test_text_blocks_and_neighbours_of_one_role_are_joined(reader: anthropic.Anthropic) -> None:
    cached = {"type": "text", "text": "two", "cache_control": {"type": "ephemeral"}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "one"}, cached]},
        {"role": "user", "content": "three"},
    ]
    expected = read([{"role": "user", "content": "one\ntwo\nthree"}])
    assert create(reader, messages=messages).content[0].text == expected


def test_an_answer_can_be_sent_back_as_it_came(reader: anthropic.Anthropic) -> None:
    first = create(reader)
    further = {"role": "user", "content": "go on"}
    messages = [*MESSAGES, {"role": "assistant", "content": first.content}, further]
    expected = read([*MESSAGES, {"role": "assistant", "content": first.content[0].text}, further])
    assert create(reader, messages=messages).content[0].text == expected


def test_a_last_message_of_the_assistant_is_continued(reader: anthropic.Anthropic) -> None:
    messages = [*MESSAGES, {"role": "assistant", "content": "well the"}]
    expected = read("user: say something\nassistant: well the")
    assert create(reader, messages=messages).content[0].text == expected


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"system": "Be brief."},
        {"messages": [*MESSAGES, {"role": "assistant", "content": "well"}]},
    ],
)
def test_counted_tokens_are_those_of_the_prompt(claude: anthropic.Anthropic, options: dict[str, Any]) -> None:
    counted = claude.messages.count_tokens(**{"model": "fake", "messages": MESSAGES, **options})
    for _ in range(2):
        spent = create(claude, **options).usage
        assert spent.cache_creation_input_tokens == 0
        assert counted.input_tokens == spent.input_tokens + spent.cache_read_input_tokens
    assert spent.cache_read_input_tokens > 0


def test_tokens_from_the_cache_are_counted_apart() -> None:
    assert anthropic_usage(Usage(30, 5, 20, 1, 2)) == {
        "input_tokens": 10,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 20,
        "output_tokens": 5,
        "output_tokens_details": {"thinking_tokens": 0},
    }


# --- what is refused -----------------------------------------------------------------------------------

IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"extra_body": {"stop": ["a"]}}, "Unknown parameter: 'stop'. Did you mean 'stop_sequences'"),
        ({"extra_body": {"temperature": 1.5}}, "temperature: .*less than or equal to 1"),
        ({"extra_body": {"temperature": "hot"}}, "temperature: .*number"),
        ({"extra_body": {"top_k": -1}}, "top_k"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages.0.role: .*'user', 'assistant'"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages.0.content: must be text or a list"),
        ({"messages": [{"role": "user", "content": []}]}, "messages.0.content"),
        (
            {"messages": [{"role": "user", "content": [IMAGE]}]},
            "content.0: the image.*does not see",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "Missing.*content.0.text"),
        (
            {"messages": [{"role": "user", "content": "x" * 5000}]},
            "holds 4096, .*Shorten the prompt: ",
        ),
        ({"stop_sequences": [""]}, "stop_sequences.0"),
        ({"metadata": {"user_ids": "u"}}, "Unknown parameter: 'metadata.user_ids'. Did you mean"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_what_cannot_be_done_is_refused(
    claude: anthropic.Anthropic, options: dict[str, Any], message: str, stream: bool
) -> None:
    with pytest.raises(anthropic.BadRequestError, match=message) as caught:
        create(claude, stream=stream, **options)
    assert caught.value.type == "invalid_request_error"
    assert caught.value.body["type"] == "error"  # type: ignore[index]


def test_whom_a_client_acts_for_may_be_said(claude: anthropic.Anthropic) -> None:
    assert create(claude, metadata={"user_id": "u"}).content[0].text == alone()


def test_models_that_are_not_there(claude: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match="Available: fake, other") as caught:
        create(claude, model="nonesuch")
    assert caught.value.type == "not_found_error"
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.count_tokens(model="nonesuch", messages=[{"role": "user", "content": "x"}])


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b'{"messages": 3}', b"\xff\xfe", b"1e999"])
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
def test_nonsense_is_refused_in_anthropic_s_form(server: Running, path: str, content: bytes) -> None:
    reply = httpx.post(f"{server.url}{path}", content=content, headers=JSON)
    assert reply.status_code == 400
    assert reply.json()["type"] == "error"
    assert set(reply.json()["error"]) == {"type", "message"}


def test_only_these_paths_answer_in_anthropic_s_form(server: Running) -> None:
    for method, path, status in (("GET", "/v1/messages", 405), ("POST", "/v1/messages/batches", 404)):
        reply = httpx.request(method, f"{server.url}{path}")
        assert (reply.status_code, reply.json()["type"]) == (status, "error")
    for path in ("/v1/messagesofmine", "/v1/chat/completions"):
        reply = httpx.post(f"{server.url}{path}", json={"messages": []})
        assert "type" not in reply.json()
        assert "code" in reply.json()["error"]


def test_a_failure_in_the_middle_is_the_last_event(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(end=-40.0) as running, client_of(running) as claude:
        create(claude, max_tokens=1)
        model = running.engines["fake"].model
        forward, calls = model.forward, iter(range(100))

        def failing(batch: Sequence[Rows]) -> Logits:
            if next(calls) == 5:
                raise RuntimeError("/secret/place")
            return forward(batch)

        monkeypatch.setattr(model, "forward", failing)
        got: list[str] = []
        with pytest.raises(anthropic.APIStatusError, match="The engine failed") as caught:
            got.extend(event.type for event in create(claude, max_tokens=1000, stream=True))
        assert got[0] == "message_start"
        assert caught.value.type == "api_error"
        assert "secret" not in json.dumps(caught.value.body)


def test_a_stream_that_is_closed_early_frees_its_place() -> None:
    with serving(end=-40.0, context_length=1_000_000) as running, client_of(running) as claude:
        with create(claude, max_tokens=900_000, stream=True) as events:
            assert next(events).type == "message_start"
        deadline = time.monotonic() + 10
        while not running.engines["fake"].idle:
            assert time.monotonic() < deadline, "the request is still running"
            time.sleep(0.01)
