"""Fields that this server does not have: ignored and named, mapped to ours, or refused with the reason."""

from __future__ import annotations

import json
import logging
from typing import Any

import httpx
import pytest

from foredraft.server.anthropic.content import ChatTurn
from foredraft.server.anthropic.schemas import MessagesRequest
from foredraft.server.anthropic.tools import ToolParam
from foredraft.server.openai.chat_schemas import ChatMessage, ChatRequest
from foredraft.server.openai.response_schemas import ResponseRequest
from foredraft.server.openai.schemas import Body, CompletionRequest, names_of
from foredraft.server.unknown_fields import MEANING, MOST_KEYS, MOST_UNKNOWN, NOTHING, check
from http_server import Running
from malformed_bodies import fault

IGNORED = "x-foredraft-ignored"
CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": HELLO, "max_tokens": 4},
    "/v1/completions": {"prompt": "hello", "max_tokens": 4},
    "/v1/responses": {"input": "hello", "max_output_tokens": 4},
    "/v1/messages": {"model": "fake", "messages": HELLO, "max_tokens": 4},
    "/v1/messages/count_tokens": {"model": "fake", "messages": HELLO},
    "/tokenize": {"content": "hello"},
    "/detokenize": {"tokens": [104]},
}
PEERS: dict[str, Any] = {
    # llama.cpp
    "cache_prompt": True,
    "id_slot": 0,
    "n_probs": 3,
    "n_keep": 4,
    "repeat_last_n": 64,
    "samplers": ["top_k", "temperature"],
    "timings_per_token": True,
    "t_max_predict_ms": 1000,
    "return_progress": True,
    # vLLM
    "skip_special_tokens": True,
    "request_id": "r",
    "kv_transfer_params": {},
    "return_token_ids": True,
    "mm_processor_kwargs": {},
    "cache_salt": "s",
    "add_special_tokens": True,
    # Ollama, LM Studio
    "keep_alive": "5m",
    "ttl": 60,
    "draft_model": "m",
    # OpenRouter, LiteLLM, Open WebUI
    "provider": {"order": ["a"]},
    "route": "fallback",
    "models": ["a"],
    "transforms": ["middle-out"],
    "litellm_session_id": "x",
    "drop_params": True,
    "chat_id": "c",
    "session_id": "s",
    "background_tasks": {},
    # OpenAI's and Anthropic's own agents
    "client_metadata": {"a": 1},
    "betas": ["a"],
    "anthropic_version": "2023-06-01",
    "diagnostics": True,
    "colour": "red",
    "x_custom": 1,
}


def post(server: Running, path: str, **more: Any) -> httpx.Response:
    greedy = {} if path in ("/v1/messages/count_tokens", "/tokenize", "/detokenize") else {"temperature": 0}
    return httpx.post(f"{server.url}{path}", json={**BODIES[path], **greedy, **more}, timeout=30)


def named(reply: httpx.Response) -> list[str]:
    return [name for name in reply.headers.get(IGNORED, "").split(", ") if name]


def said(reply: httpx.Response) -> Any:
    answer = reply.json()
    for name in ("choices", "content", "tokens", "input_tokens"):
        if name in answer:
            return answer[name]
    return [item["content"][0]["text"] for item in answer["output"]]


# --- ignored -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", BODIES)
def test_what_other_servers_know_is_ignored_and_named(server: Running, path: str) -> None:
    for name, value in PEERS.items():
        reply = post(server, path, **{name: value})
        assert reply.status_code == 200, reply.text
        assert named(reply) == [name]
    assert said(reply) == said(post(server, path))
    assert IGNORED not in post(server, path).headers


def test_streams_name_what_they_ignore(server: Running) -> None:
    for path in (CHAT, "/v1/completions", "/v1/responses", "/v1/messages"):
        assert named(post(server, path, stream=True, keep_alive=1, cache_prompt=False)) == [
            "keep_alive",
            "cache_prompt",
        ]


def test_what_stands_in_messages_and_tools_is_named_once(server: Running) -> None:
    message = {
        "role": "user",
        "content": [{"type": "text", "text": "hi", "id": 1}],
        "id": "a",
        "timestamp": 1,
    }
    tool = {"type": "function", "function": {"name": "f", "examples": []}, "cache_control": {}}
    reply = post(server, CHAT, messages=[message, {**HELLO[0], "id": "b"}, message], tools=[tool])
    assert reply.status_code == 200, reply.text
    expected = {"messages.id", "messages.timestamp", "messages.content.id"}
    assert {*named(reply)} == {*expected, "tools.cache_control", "tools.function.examples"}
    assert len(named(reply)) == 5
    turn = {"role": "assistant", "content": [{"type": "text", "text": "x", "citations": []}], "id": "m"}
    claude = {"name": "f", "input_schema": {"type": "object"}, "input_examples": [{}], "defer_loading": True}
    reply = post(server, "/v1/messages", messages=[*HELLO, turn, *HELLO], tools=[claude])
    assert reply.status_code == 200, reply.text
    assert named(reply) == ["messages.id", "tools.input_examples", "tools.defer_loading"]


@pytest.mark.parametrize(
    ("path", "options", "names"),
    [
        ("/v1/responses", {"store": True, "truncation": "auto"}, ["store", "truncation"]),
        (
            "/v1/responses",
            {"include": ["file_search_call.results"]},
            ["include.file_search_call.results"],
        ),
        ("/v1/responses", {"context_management": [{"type": "compaction"}]}, ["context_management"]),
        ("/v1/responses", {"text": {"verbosity": "low"}}, ["text.verbosity"]),
        (CHAT, {"verbosity": "low", "service_tier": "flex"}, ["verbosity", "service_tier"]),
        (CHAT, {"prompt_cache_retention": "24h", "store": True}, ["prompt_cache_retention", "store"]),
        ("/v1/messages", {"context_management": {"edits": []}}, ["context_management"]),
        (
            "/v1/messages",
            {"output_config": {"effort": "low"}, "speed": "fast"},
            ["output_config.effort", "speed"],
        ),
        ("/v1/messages", {"inference_geo": "us"}, ["inference_geo"]),
    ],
)
def test_wishes_that_nothing_here_depends_on(
    server: Running, path: str, options: dict[str, Any], names: list[str]
) -> None:
    reply = post(server, path, **options)
    assert reply.status_code == 200, reply.text
    assert sorted(named(reply)) == sorted(names)
    assert said(reply) == said(post(server, path))


@pytest.mark.parametrize(
    ("path", "options"),
    [
        (CHAT, {"store": False, "service_tier": "auto", "verbosity": "medium", "modalities": ["text"]}),
        (CHAT, {"mirostat": 0, "typical_p": 1.0, "dry_multiplier": 0, "do_sample": True, "colour": None}),
        ("/v1/responses", {"truncation": "disabled", "text": {"verbosity": "medium"}, "max_token": None}),
        ("/v1/messages", {"speed": "standard", "service_tier": "standard_only", "mcp_servers": []}),
    ],
)
def test_what_asks_for_what_is_done_anyway_is_not_named(
    server: Running, path: str, options: dict[str, Any]
) -> None:
    reply = post(server, path, **options)
    assert reply.status_code == 200, reply.text
    assert named(reply) == []


def with_ignored(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Lines of the request log that name ignored fields. The line of another test's request may come late."""
    lines = [record for record in caplog.records if record.name == "foredraft.requests"]
    return [line for line in lines if "ignored" in line.__dict__["facts"]]


def test_the_log_names_it_too(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "foredraft.requests"):
        post(server, CHAT, keep_alive=1)
        post(server, CHAT)
    [record] = with_ignored(caplog)
    assert 'ignored=["keep_alive"]' in record.getMessage()


def test_the_log_cuts_them_as_the_header_does(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "foredraft.requests"):
        post(server, CHAT, **{f"{number}{'k' * 100_000}": 1 for number in range(60)})
        post(server, CHAT)
    [record] = with_ignored(caplog)
    assert len(record.getMessage()) < 3000
    ignored = record.__dict__["facts"]["ignored"]
    assert len(ignored) == 21
    assert ignored[-1] == "and 40 more"


@pytest.mark.parametrize(
    "name", ["", "\x00", "a.b", "a\r\nset-cookie: x", "é" * 100, "k" * 100_000, "\ud800"]
)
@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/tokenize"])
def test_odd_names_cannot_do_harm(server: Running, path: str, name: str) -> None:
    content = json.dumps({**BODIES[path], name: 1, f"{name}{name}": 2})
    headers = {"content-type": "application/json"}
    reply = httpx.post(f"{server.url}{path}", content=content, headers=headers, timeout=30)
    if name == "\ud800":
        assert fault(reply, path) is None
        return
    assert reply.status_code == 200
    assert "set-cookie" not in reply.headers
    assert len(reply.headers[IGNORED]) < 1000


def test_many_names_are_cut(server: Running) -> None:
    reply = post(server, CHAT, **{f"field_{number}": 1 for number in range(60)})
    assert reply.headers[IGNORED].endswith(", and 40 more")


# --- mapped --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"repeat_penalty": 1.7}, {"repetition_penalty": 1.7}),
        ({"n_predict": 2, "max_tokens": None}, {"max_tokens": 2}),
        ({"guided_regex": "[a-c]{3}"}, {"regex": "[a-c]{3}"}),
        ({"guided_choice": ["yes", "no!"]}, {"regex": "yes|no!"}),
        ({"structured_outputs": {"regex": "[a-c]{3}"}}, {"regex": "[a-c]{3}"}),
        ({"structured_outputs": {"choice": ["yes"]}}, {"regex": "yes"}),
        (
            {"structured_outputs": {"regex": "yes", "structural_tag": None, "disable_any_whitespace": False}},
            {"regex": "yes"},
        ),
        ({"guided_grammar": 'root ::= "abc"'}, {"grammar": 'root ::= "abc"'}),
    ],
)
def test_what_is_ours_under_another_name(
    server: Running, theirs: dict[str, Any], ours: dict[str, Any]
) -> None:
    path = CHAT
    left_out = {name for name, value in theirs.items() if value is None}
    base = {name: value for name, value in BODIES[path].items() if name not in left_out}
    given = {name: value for name, value in theirs.items() if value is not None}
    replies = [
        httpx.post(f"{server.url}{path}", json={**base, "temperature": 0, **more}, timeout=30)
        for more in (given, ours)
    ]
    assert [reply.status_code for reply in replies] == [200, 200], replies[0].text
    assert said(replies[0]) == said(replies[1])
    assert named(replies[0]) == []


def test_how_a_form_is_brought_about_is_ignored(server: Running) -> None:
    reply = post(server, CHAT, structured_outputs={"regex": "yes", "disable_fallback": True})
    assert said(reply) == said(post(server, CHAT, regex="yes"))
    assert named(reply) == ["disable_fallback"]


SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": ["b"]}},
    "required": ["a"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "form",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}},
        {"response_format": {"type": "json_schema", "schema": SCHEMA}},
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        {"json_schema": SCHEMA},
        {"guided_json": SCHEMA},
        {"guided_json": json.dumps(SCHEMA)},
        {"structured_outputs": {"json": SCHEMA, "regex": None}},
    ],
)
def test_a_schema_is_followed_under_each_of_its_names(server: Running, form: dict[str, Any]) -> None:
    reply = post(
        server, CHAT, max_tokens=100, logit_bias={"32": -100, "10": -100, "9": -100, "13": -100}, **form
    )
    assert reply.status_code == 200, reply.text
    assert json.loads(reply.json()["choices"][0]["message"]["content"]) == {"a": "b"}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"repeat_penalty": 1.1, "repetition_penalty": 1.2},
            "another name of repetition_penalty, and their values differ",
        ),
        ({"guided_regex": "a", "regex": "b"}, "cannot be combined"),
        ({"guided_json": "{"}, "be a JSON schema"),
        ({"guided_json": "[" * 20_000}, "be a JSON schema"),
        ({"guided_choice": []}, "a list of strings"),
        ({"structured_outputs": 3}, "must be an object"),
        ({"json_schema": SCHEMA, "guided_regex": "a"}, "cannot be combined"),
    ],
)
def test_names_that_contradict_each_other(server: Running, options: dict[str, Any], says: str) -> None:
    reply = post(server, CHAT, **options)
    assert fault(reply, CHAT) is None, reply.text
    assert says in reply.json()["error"]["message"]


def test_minus_one_is_as_many_tokens_as_there_is_room_for(server: Running) -> None:
    reply = post(server, CHAT, max_tokens=-1, stop=["e"])
    assert reply.status_code == 200
    assert fault(post(server, CHAT, max_tokens=-2), CHAT) is None


# --- refused -------------------------------------------------------------------------------------------

SLIPS = [
    (CHAT, "max_token", "max_tokens"),
    (CHAT, "maxTokens", "max_tokens"),
    (CHAT, "temprature", "temperature"),
    (CHAT, "topP", "top_p"),
    (CHAT, "stops", "stop"),
    (CHAT, "tool", "tools"),
    (CHAT, "presence_penality", "presence_penalty"),
    (CHAT, "stop_sequences", "stop"),
    (CHAT, "max_output_tokens", "max_tokens"),
    (CHAT, "instructions", "messages"),
    ("/v1/completions", "max_completion_tokens", "max_tokens"),
    ("/v1/completions", "messages", "prompt"),
    ("/v1/responses", "max_tokens", "max_output_tokens"),
    ("/v1/responses", "messages", "input"),
    ("/v1/responses", "response_format", "text"),
    ("/v1/messages", "stop", "stop_sequences"),
    ("/v1/messages", "max_completion_tokens", "max_tokens"),
    ("/tokenize", "contents", "content"),
]


@pytest.mark.parametrize(("path", "name", "ours"), SLIPS)
def test_a_slip_is_found_out(server: Running, path: str, name: str, ours: str) -> None:
    reply = post(server, path, **{name: 1})
    assert fault(reply, path) is None, reply.text
    assert f"Unknown parameter: {name!r}. Did you mean {ours!r}?" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "options", "says"),
    [
        (CHAT, {"messages": [{**HELLO[0], "images": ["aGk="]}]}, "parts of a message's content"),
        (CHAT, {"voice": "ash"}, "only reads text and images"),
        (CHAT, {"modalities": ["text", "audio"]}, "only reads text and images"),
        (CHAT, {"web_search_options": {}}, "searches and other servers"),
        (CHAT, {"plugins": [{"id": "web"}]}, "searches and other servers"),
        (CHAT, {"mirostat": 2}, "is not supported"),
        (CHAT, {"typical_p": 0.9}, "is not supported"),
        (CHAT, {"do_sample": False}, "temperature of 0"),
        (CHAT, {"extra_body": {"top_k": 1}}, "into the body itself"),
        (CHAT, {"bad_words": ["x"]}, "logit_bias"),
        (CHAT, {"format": "json"}, "response_format"),
        (CHAT, {"messages": [*HELLO, {"role": "assistant", "content": "x", "prefix": True}]}, "/v1/messages"),
        (
            CHAT,
            {"messages": [*HELLO, {"role": "assistant", "content": "x", "partial": True}]},
            "/v1/messages",
        ),
        (
            "/v1/messages",
            {"messages": [*HELLO, {"role": "assistant", "content": "x", "prefix": True}]},
            "is continued by /v1/messages, and by",
        ),
        (CHAT, {"ebnf": 'root ::= "a"'}, "send it as grammar"),
        ("/v1/completions", {"ebnf": 'root ::= "a"'}, "send it as grammar"),
        (CHAT, {"stop_regex": "a+"}, "use stop"),
        (CHAT, {"structural_tag": {"format": {}}}, "response_format"),
        (CHAT, {"grammar_lazy": True}, "response_format"),
        (CHAT, {"guided_whitespace_pattern": " "}, "response_format"),
        (CHAT, {"structured_outputs": {"structural_tag": {"format": {}}}}, "support 'structural_tag'"),
        (CHAT, {"structured_outputs": {"whitespace_pattern": " "}}, "support 'whitespace_pattern'"),
        (CHAT, {"structured_outputs": {"n": 3, "model": "zz"}}, "support 'n'"),
        (CHAT, {"structured_outputs": {"k" * 100_000: 3}}, "use one of json, "),
        ("/v1/responses", {"logit_bias": {"1": 2}}, "does not have this field"),
        ("/v1/responses", {"continue_final_message": True}, "does not have this field"),
        ("/v1/messages", {"grammar": "x"}, "does not have this field"),
        ("/v1/messages", {"n": 2}, "does not have this field"),
        ("/v1/completions", {"guided_json": {}, "n": 1, "json_schema": {"a": 1}}, "does not have this field"),
    ],
)
def test_what_would_make_another_answer(
    server: Running, path: str, options: dict[str, Any], says: str
) -> None:
    reply = post(server, path, **options)
    assert fault(reply, path) is None, reply.text
    assert says in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    "kind",
    [ChatRequest, CompletionRequest, ResponseRequest, MessagesRequest, ChatMessage, ChatTurn, ToolParam],
)
def test_no_field_of_another_server_is_taken_for_a_slip(kind: type[Body]) -> None:
    known = names_of(kind)
    check({name: value for name, value in PEERS.items() if name not in known}, known)
    check({name: value for name, refused in MEANING.items() for value in refused.off[:1]}, known)
    assert all(refused.off[0] in (*NOTHING, True) for refused in MEANING.values())


# --- how many ------------------------------------------------------------------------------------------


def test_a_body_has_so_many_unknown_names(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """To compare each with ours takes time, and nothing else runs meanwhile."""
    looked_up: list[str] = []

    def close(name: str, *_: object) -> list[str]:
        looked_up.append(name)
        return []

    monkeypatch.setattr("foredraft.server.unknown_fields.get_close_matches", close)
    messages = [{**HELLO[0], **{f"q{place}z{key}": 1 for key in range(90)}} for place in range(60)]
    reply = post(server, CHAT, messages=messages)
    assert fault(reply, CHAT) is None, reply.text
    assert "too many unknown fields" in reply.json()["error"]["message"]
    assert len(looked_up) <= MOST_UNKNOWN
    looked_up.clear()
    same = [{**HELLO[0], **{f"qz{key}": 1 for key in range(40)}} for _ in range(60)]
    assert post(server, CHAT, messages=same).status_code == 200
    assert len(looked_up) == 40


def test_a_slip_is_found_beside_many_others(server: Running) -> None:
    extra = {f"qz{key}": 1 for key in range(MOST_UNKNOWN - 1)}
    assert post(server, CHAT, **extra).status_code == 200
    assert "'max_tokens'" in post(server, CHAT, **extra, max_token=4).json()["error"]["message"]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"messages": [{**HELLO[0], "content": [{"type": "text", "text": "x"}]}]},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
    ],
)
def test_every_object_has_so_many_keys(server: Running, options: dict[str, Any]) -> None:
    keys = {f"qz{key}": None for key in range(MOST_KEYS + 1)}
    body: dict[str, Any] = {**options, **({} if options else keys)}
    for message in body.get("messages", ()):
        message["content"][0].update(keys)
    for tool in body.get("tools", ()):
        tool["function"].update(keys)
    reply = post(server, CHAT, **body)
    assert fault(reply, CHAT) is None, reply.text
    assert "keys is not part of this API" in reply.json()["error"]["message"]
