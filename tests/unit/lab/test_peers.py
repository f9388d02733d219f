"""Measuring another server: with its own timings and without, and what is said when it does not answer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import pytest

from chat_server import ChatServer, chat_server, piece
from foredraft.bench.results import Row, Sample
from foredraft.errors import (
    BackendError,
    ConfigError,
    ContextLengthError,
    ForedraftError,
)
from foredraft.types import SamplingParams
from lab.peers import ServerSide, server_notes

PROMPT = [{"role": "user", "content": "Hello?"}]
PARAMS = SamplingParams(max_tokens=16, temperature=0.5, seed=3)
TIMINGS = {
    "prompt_n": 12,
    "prompt_ms": 30.0,
    "predicted_n": 101,
    "predicted_ms": 500.0,
    "draft_n": 60,
    "draft_n_accepted": 40,
}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ChatServer]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with chat_server() as chat:
        yield chat


def llama_cpp_events(
    pieces: Sequence[str], *, cached: int = 0, drafted: int = 0, accepted: int = 0
) -> list[dict[str, Any]]:
    """A streamed answer of llama.cpp's server, field by field (build of October 2026)."""
    common = {
        "created": 1795288716,
        "id": "chatcmpl-w2vBzyiFSQZb8kUGFKE4brscaxJafVbA",
        "model": "/models/SmolLM2-135M.Q4_1.gguf",
        "system_fingerprint": "b0-unknown",
        "object": "chat.completion.chunk",
    }

    def event(delta: dict[str, str | None], reason: str | None = None) -> dict[str, Any]:
        return {"choices": [{"finish_reason": reason, "index": 0, "delta": delta}], **common}

    timings = {
        "cache_n": cached,
        "prompt_n": 50 - cached,
        "prompt_ms": 791.555,
        "prompt_per_token_ms": 15.8311,
        "prompt_per_second": 63.16680458085667,
        "predicted_n": 60,
        "predicted_ms": 1890.108,
        "predicted_per_token_ms": 32.035728813559324,
        "predicted_per_second": 31.215147494217263,
    }
    usage = {
        "completion_tokens": 60,
        "prompt_tokens": 50,
        "total_tokens": 110,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    drafts = {"draft_n": drafted, "draft_n_accepted": accepted} if drafted else {}
    return [
        event({"role": "assistant", "content": None}),
        *(event({"content": piece}) for piece in pieces),
        event({}, "length"),
        {"choices": [], **common, "usage": usage, "timings": {**timings, **drafts}},
    ]


def answer(server: ChatServer, **options: Any) -> Sample:
    side = ServerSide(server.url, **options)
    try:
        return side.answer(PROMPT, PARAMS)
    finally:
        side.close()


def refused(server: ChatServer, **options: Any) -> ForedraftError:
    with pytest.raises(ForedraftError) as caught:
        answer(server, **options)
    assert server.url in caught.value.message
    return caught.value


# --- what is measured ----------------------------------------------------------------------------------


def test_the_servers_own_timings(server: ChatServer) -> None:
    usage = {"prompt_tokens": 40, "completion_tokens": 101}
    server.events = [piece("Good "), piece("day"), {"choices": [], "timings": TIMINGS, "usage": usage}]
    sample = answer(server)
    assert sample.text == "Good day"
    assert (sample.count, sample.decode_ms) == (101, 500.0)
    assert sample.rate == pytest.approx(200)
    assert (sample.prompt_tokens, sample.prompt_ms) == (40, 30.0)
    assert (sample.drafted, sample.accepted) == (60, 40)
    # 100 tokens after the first, of which 40 came out of drafts: 60 rounds.
    assert sample.rounds == 60
    assert not sample.exact


def test_timings_that_only_have_a_rate(server: ChatServer) -> None:
    server.events = [piece("x"), {"timings": {"predicted_n": 50, "predicted_per_second": 100.0}}]
    assert answer(server).decode_ms == pytest.approx(500)


def test_without_timings_the_clock_runs_from_the_first_piece_to_the_last(server: ChatServer) -> None:
    ticks = count()
    server.events = [
        {"choices": [{"delta": {"role": "assistant", "content": ""}}]},  # second 0: no text yet
        piece("One"),
        piece(" two"),
        piece(" three"),
        {"choices": [{"delta": {}, "finish_reason": "stop"}]},
        {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 21}},
    ]
    sample = answer(server, clock=lambda: float(next(ticks)))
    assert sample.decode_ms == 2000.0
    assert sample.count == 21
    assert sample.rate == pytest.approx(10)
    assert (sample.prompt_tokens, sample.rounds, sample.drafted) == (9, 0, 0)


def test_without_usage_the_pieces_are_counted(server: ChatServer) -> None:
    server.events = [piece(f"{number} ") for number in range(7)]
    assert answer(server).count == 7


def test_thoughts_are_text_that_was_generated(server: ChatServer) -> None:
    server.events = [piece("Hm. ", "reasoning_content"), piece("Yes.")]
    sample = answer(server)
    assert (sample.text, sample.count) == ("Hm. Yes.", 2)


# --- what is sent --------------------------------------------------------------------------------------


def test_what_is_asked(server: ChatServer) -> None:
    answer(server)
    assert server.bodies == [
        {
            "model": "small",
            "messages": PROMPT,
            "max_tokens": 16,
            "temperature": 0.5,
            "seed": 3,
            "stream": True,
            "stream_options": {"include_usage": True},
            "top_p": 1.0,
        }
    ]
    assert set(server.keys) == {None}


@pytest.mark.parametrize("owner", ["llamacpp", "vllm", "foredraft"])
def test_a_server_that_truncates_unless_told_not_to_is_told(server: ChatServer, owner: str) -> None:
    """llama.cpp's defaults are top-k 40, top-p 0.95 and min-p 0.05: another distribution than ours."""
    server.owner = owner
    answer(server)
    assert {name: server.bodies[0][name] for name in ("top_k", "top_p", "min_p")} == {
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
    }


def test_greedy_answers_need_no_truncation(server: ChatServer) -> None:
    server.owner = "llamacpp"
    side = ServerSide(server.url)
    side.answer(PROMPT, SamplingParams(max_tokens=4))
    side.close()
    assert not {"top_k", "top_p", "min_p"} & set(server.bodies[0])


def test_a_model_and_a_key(server: ChatServer) -> None:
    answer(server, model="large", api_key="secret")
    assert server.bodies[0]["model"] == "large"
    assert set(server.keys) == {"Bearer secret"}


@pytest.mark.parametrize("ending", ["", "/", "/v1", "/v1/", "/v1/chat/completions"])
def test_ways_to_write_the_address(server: ChatServer, ending: str) -> None:
    side = ServerSide(server.url + ending)
    assert (side.url, side.name) == (f"{server.url}/v1", server.url)
    assert side.answer(PROMPT, PARAMS).text == "Hello"
    side.close()
    side.close()


# --- llama.cpp's server, as it answers -----------------------------------------------------------------


def test_llama_cpps_stream(server: ChatServer) -> None:
    """As recorded from it: a first piece without text, and usage and timings in an event of their own."""
    server.owner, server.models = "llamacpp", ("/models/SmolLM2-135M.Q4_1.gguf",)
    server.events = llama_cpp_events(("One", " two", " three"), drafted=20, accepted=2)
    side = ServerSide(server.url, name="llama-server")
    sample = side.answer(PROMPT, SamplingParams(max_tokens=60))
    side.close()
    assert server.bodies[0]["model"] == "/models/SmolLM2-135M.Q4_1.gguf"
    assert side.about == f"{server.url}/v1, model SmolLM2-135M.Q4_1.gguf"
    assert sample.text == "One two three"
    assert (sample.count, sample.decode_ms) == (60, 1890.108)
    # Its own rate is over the 59 tokens after the first as well.
    assert sample.rate == pytest.approx(31.215147494217263)
    assert (sample.prompt_tokens, sample.prompt_ms) == (50, 791.555)
    assert (sample.drafted, sample.accepted, sample.rounds) == (20, 2, 57)


def test_llama_cpps_stream_without_drafts_and_with_a_cached_prompt(server: ChatServer) -> None:
    """Its `prompt_n` is what had to be read; `draft_n` is only there where something was drafted."""
    *events, last = llama_cpp_events(("Hi",), cached=24)
    assert "draft_n" not in last["timings"]
    server.events = [*events, {key: value for key, value in last.items() if key != "usage"}]
    sample = answer(server)
    assert sample.prompt_tokens == 50
    assert (sample.drafted, sample.accepted, sample.rounds) == (0, 0, 59)


@pytest.mark.parametrize(
    "refusal",
    [
        {
            "error": {
                "code": 400,
                "message": "request (3031 tokens) exceeds the available context size (2048 tokens)",
                "type": "exceed_context_size_error",
                "n_prompt_tokens": 3031,
                "n_ctx": 2048,
            }
        },
        {
            "error": {
                "message": "too long",
                "type": "invalid_request_error",
                "code": "context_length_exceeded",
            }
        },
    ],
)
def test_a_prompt_that_is_too_long_for_it(server: ChatServer, refusal: object) -> None:
    """The benchmark leaves such a prompt out, as it does one that is too long for ours."""
    server.status, server.refusal = 400, json.dumps(refusal)
    error = refused(server, model="x")
    assert isinstance(error, ContextLengthError)
    assert "larger context" in (error.hint or "")


# --- what goes wrong -----------------------------------------------------------------------------------


def test_nobody_is_there() -> None:
    with chat_server() as gone:
        pass
    error = refused(gone)
    assert isinstance(error, ConfigError)
    assert "cannot be reached" in error.message
    assert "Is it running?" in (error.hint or "")


@pytest.mark.parametrize("url", ["ftp://example.org", "localhost:8080", "http://[", "not a url"])
def test_not_an_address(url: str) -> None:
    with pytest.raises(ConfigError):
        ServerSide(url)


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "the model `x` does not exist", "code": 404}},
        {"error": "the model `x` does not exist"},
        {"detail": "the model `x` does not exist"},
        {"message": "the model `x` does not exist"},
        "the model `x` does not exist",
    ],
)
def test_a_wrong_model(server: ChatServer, body: object) -> None:
    server.status, server.refusal = 404, body if isinstance(body, str) else json.dumps(body)
    error = refused(server, model="x")
    assert isinstance(error, ConfigError)
    assert error.message.endswith("answered with status 404: the model `x` does not exist")
    assert error.hint == "The model was 'x'; --against-model names another."


def test_a_wrong_key(server: ChatServer) -> None:
    server.status, server.refusal = 401, json.dumps({"error": {"message": "invalid key"}})
    error = refused(server, api_key="secret")
    assert isinstance(error, ConfigError)
    assert "--api-key" in (error.hint or "")
    assert "secret" not in str(error)


def test_another_kind_of_server(server: ChatServer) -> None:
    server.status, server.refusal = 404, "<html>" + "x" * 5000
    error = refused(server)
    assert isinstance(error, ConfigError)
    assert "OpenAI-compatible" in (error.hint or "")
    assert len(error.message) < 500


def test_a_server_that_fails(server: ChatServer) -> None:
    server.status, server.refusal = 503, json.dumps({"error": {"message": "loading model"}})
    error = refused(server)
    assert isinstance(error, BackendError)
    assert "loading model" in error.message


def test_a_failure_in_the_middle_of_a_stream(server: ChatServer) -> None:
    server.events = [piece("Hel"), {"error": {"message": "out of memory"}}]
    error = refused(server)
    assert isinstance(error, BackendError)
    assert "out of memory" in error.message


@pytest.mark.parametrize(
    "events",
    [
        ["{not json"],
        ["[1, 2]"],
        [{"choices": ["text"]}],
        [{"choices": [{"delta": 5}]}],
        [piece("x"), {"usage": {"completion_tokens": "many"}}],
        [piece("x"), {"timings": [1]}],
        [],
    ],
)
def test_answers_that_are_not_of_this_kind(server: ChatServer, events: list[Any]) -> None:
    server.events = events
    error = refused(server)
    assert isinstance(error, BackendError)
    assert "does not answer like an OpenAI-compatible one" in error.message


def test_a_server_without_models(server: ChatServer) -> None:
    server.models = ()
    assert "lists no model" in refused(server).message


# --- notes -------------------------------------------------------------------------------------------


def row(prompt: str, setting: str, text: str, tokens: int = 40, repeat: int = 0) -> Row:
    return Row(prompt, "c", setting, repeat, Sample(text=text, count=9, decode_ms=1.0, prompt_tokens=tokens))


def test_the_same_texts_and_prompts_need_no_note() -> None:
    rows = [row("a", "off", "x"), row("a", "theirs", "x"), row("b", "off", "y"), row("b", "auto", "z")]
    assert server_notes(rows, "theirs", "off") == []


def test_texts_that_differ_are_counted() -> None:
    rows = [row(name, "off", "x") for name in "abc"]
    rows += [row("a", "theirs", "x"), row("b", "theirs", "y"), row("b", "theirs", "x", repeat=1)]
    [note] = server_notes(rows, "theirs", "off")
    assert note.startswith("theirs: 1 of 2 texts are not those of off.")
    assert "no error of either" in note


def test_prompts_of_other_lengths_are_another_template() -> None:
    rows = [row("a", "off", "x"), row("a", "theirs", "x", tokens=43), row("b", "off", "y")]
    rows += [row("b", "theirs", "y", tokens=44)]
    [note] = server_notes(rows, "theirs", "off")
    assert "a has 43 tokens there and 40 here" in note
    assert "chat template" in note


def test_a_server_that_does_not_count_prompts() -> None:
    assert server_notes([row("a", "off", "x"), row("a", "theirs", "x", tokens=0)], "theirs", "off") == []
