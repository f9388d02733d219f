"""What a client can send to break things, and settings that must do what they say."""

from __future__ import annotations

import gzip
import json
import threading
from typing import Any

import httpx
import pytest

from foredraft import Engine
from foredraft.sampling.constraint import _Compiler
from foredraft.sampling.grammar import Source
from foredraft.server.auth import hash_key
from foredraft.server.settings import KeySettings, Limits, SamplingDefaults, ServerSettings
from foredraft.types import Constraint, Event
from http_server import Running, serving

ORIGIN = "https://chat.example.org"
USER = {"role": "user", "content": "hi"}


def post(server: Running, path: str, body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}{path}", content=json.dumps(body), headers=JSON, timeout=30)


JSON = {"content-type": "application/json"}


@pytest.mark.parametrize("tokens", [[-1], [99_999], [10**30]])
def test_token_ids_are_checked_before_they_are_looked_up(server: Running, tokens: list[int]) -> None:
    reply = post(server, "/v1/completions", {"prompt": tokens, "echo": True, "max_tokens": 1})
    assert reply.status_code == 400
    assert "vocabulary" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "\ud800"}]}),
        (
            "/v1/chat/completions",
            {"messages": [USER], "prediction": {"type": "content", "content": "\ud800"}},
        ),
        ("/tokenize", {"content": "\ud800"}),
    ],
)
def test_half_a_character_is_the_client_s_error(server: Running, path: str, body: Any) -> None:
    reply = post(server, path, body)
    assert reply.status_code == 400
    assert "lone surrogate" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("prompt", "n", "prompts"), [("abc", 3, 1), (["abc", "de"], 2, 2), (["abc", "de"], 1, 2)]
)
def test_each_prompt_of_a_completion_counts_once(server: Running, prompt: Any, n: int, prompts: int) -> None:
    usage = post(server, "/v1/completions", {"prompt": prompt, "n": n, "max_tokens": 2}).json()["usage"]
    alone = [
        post(server, "/v1/completions", {"prompt": text, "max_tokens": 2}).json()["usage"]["prompt_tokens"]
        for text in ([prompt] if isinstance(prompt, str) else prompt)
    ]
    assert len(alone) == prompts
    assert usage["prompt_tokens"] == sum(alone)
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_text_offsets_count_text_that_is_held_back() -> None:
    with serving(script="abcdef") as running:
        reply = post(
            running,
            "/v1/completions",
            {"prompt": "assistant: ", "logprobs": 1, "stop": "bcX", "temperature": 0, "max_tokens": 9},
        ).json()["choices"][0]
    assert reply["text"] == "abcdef"
    assert reply["logprobs"]["text_offset"][:6] == [0, 1, 2, 3, 4, 5]


def test_a_browser_may_ask_before_it_sends_a_key() -> None:
    key = KeySettings(name="web", hash=hash_key("ft-web"))
    with serving(settings=ServerSettings(cors_origins=(ORIGIN,), keys=(key,))) as running:
        url = f"{running.url}/v1/models"
        ask = {"origin": ORIGIN, "access-control-request-method": "GET"}
        asked = httpx.options(url, headers={**ask, "access-control-request-headers": "authorization"})
        assert asked.status_code == 200
        assert asked.headers["access-control-allow-origin"] == ORIGIN
        refused = httpx.get(url, headers={"origin": ORIGIN})
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == ORIGIN
        assert httpx.options(url, headers={**ask, "origin": "https://evil.example"}).status_code == 400


@pytest.mark.parametrize("origins", [(ORIGIN,), ("*",)])
def test_a_listed_page_of_the_internet_may_call_this_machine(origins: tuple[str, ...]) -> None:
    """Chrome asks so before a page of a public address reaches a private one."""
    asked = {"origin": ORIGIN, "access-control-request-method": "POST"}
    asked |= {"access-control-request-private-network": "true"}
    with serving(settings=ServerSettings(cors_origins=origins)) as running:
        for path in ("/v1/chat/completions", "/v1/messages"):
            url = f"{running.url}{path}"
            allowed = httpx.options(url, headers=asked)
            assert allowed.status_code == 200
            assert allowed.headers["access-control-allow-private-network"] == "true"
            if origins != ("*",):
                refused = httpx.options(url, headers={**asked, "origin": "https://evil.example"})
                assert refused.status_code == 400
                assert "access-control-allow-origin" not in refused.headers


def test_without_listed_pages_none_may_call_this_machine() -> None:
    asked = {"origin": ORIGIN, "access-control-request-method": "POST"}
    asked |= {"access-control-request-private-network": "true"}
    with serving() as running:
        refused = httpx.options(f"{running.url}/v1/chat/completions", headers=asked)
    assert refused.status_code == 405
    assert not [name for name in refused.headers if name.startswith("access-control")]


def test_a_body_of_unknown_length_needs_its_type_too(server: Running) -> None:
    reply = httpx.post(
        f"{server.url}/v1/chat/completions", content=iter([b"{}"]), headers={"content-type": "text/plain"}
    )
    assert reply.status_code == 415


def test_metrics_can_be_switched_off() -> None:
    with serving(settings=ServerSettings(metrics=False)) as running:
        assert httpx.get(f"{running.url}/metrics").status_code == 404


def test_metrics_do_not_wait_for_a_long_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    in_round, go_on = threading.Event(), threading.Event()
    step = Engine.step

    def slow(engine: Engine) -> list[Event]:
        in_round.set()
        go_on.wait(20)
        return step(engine)

    with serving() as running:
        post(running, "/v1/chat/completions", {"messages": [USER], "max_tokens": 1})
        monkeypatch.setattr(Engine, "step", slow)
        asking = threading.Thread(
            target=post, args=(running, "/v1/chat/completions", {"messages": [USER], "max_tokens": 1})
        )
        asking.start()
        try:
            assert in_round.wait(10)
            assert "foredraft_num_requests" in httpx.get(f"{running.url}/metrics", timeout=10).text
        finally:
            go_on.set()
            asking.join(20)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [USER]}),
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/responses", {"input": "hi"}),
    ],
)
def test_a_model_s_own_defaults_are_for_what_a_request_leaves_open(path: str, body: dict[str, Any]) -> None:
    with serving(sampling=SamplingDefaults(temperature=0.0, max_tokens=5), end=-40.0) as running:
        most = "max_output_tokens" if "responses" in path else "max_tokens"

        def answer(**said: Any) -> tuple[str, int]:
            reply = post(running, path, {**body, **said}).json()
            text = json.dumps(reply["output"][0]["content"] if "output" in reply else reply["choices"])
            usage = reply["usage"]
            return text, usage.get("completion_tokens", usage.get("output_tokens"))

        assert answer() == answer()
        assert answer()[1] == 5
        assert answer(**{most: 7})[1] == 7
        assert len({answer(temperature=1.5, **{most: 30})[0] for _ in range(3)}) > 1


def test_messages_take_the_model_s_defaults_too() -> None:
    with serving(sampling=SamplingDefaults(temperature=0.0), end=-40.0) as running:
        body = {"model": "fake", "messages": [USER], "max_tokens": 30}
        texts = {post(running, "/v1/messages", body).json()["content"][0]["text"] for _ in range(3)}
    assert len(texts) == 1


def with_key(
    *, max_concurrent: int | None = None, max_priority: int = 0
) -> tuple[ServerSettings, dict[str, str]]:
    """A server's settings with one key, and the headers of who has it."""
    key = KeySettings(
        name="alice", hash=hash_key("ft-alice"), max_concurrent=max_concurrent, max_priority=max_priority
    )
    return ServerSettings(keys=(key,)), {"authorization": "Bearer ft-alice"}


def test_a_key_asks_for_no_higher_priority_than_it_may() -> None:
    settings, headers = with_key(max_priority=2)
    with serving(settings=settings) as server:
        for priority, status in ((2, 200), (-5, 200), (3, 403)):
            body = {"messages": [USER], "max_tokens": 2, "priority": priority}
            reply = httpx.post(f"{server.url}/v1/chat/completions", json=body, headers=headers, timeout=30)
            assert reply.status_code == status, reply.text
        assert "2" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [USER], "n": 3}),
        ("/v1/completions", {"prompt": "a", "n": 3}),
        ("/v1/completions", {"prompt": ["a", "b", "c"]}),
    ],
)
def test_every_answer_counts_as_one_that_runs(path: str, body: dict[str, Any]) -> None:
    settings, headers = with_key(max_concurrent=2)
    with serving(settings=settings) as server:
        reply = httpx.post(f"{server.url}{path}", json={**body, "max_tokens": 2}, headers=headers, timeout=30)
        assert reply.status_code == 400
        assert "3 answers at once" in reply.json()["error"]["message"]


def test_names_of_models_are_for_those_with_a_key() -> None:
    settings, headers = with_key()
    with serving("secret-project", settings=settings) as server:
        assert httpx.get(f"{server.url}/health", timeout=30).json() == {"status": "ok"}
        assert "secret-project" in httpx.get(f"{server.url}/v1/models", headers=headers, timeout=30).text


def test_a_long_text_does_not_hold_up_others() -> None:
    """While a thread reads one caller's text, the event loop answers the next."""
    reading, go_on = threading.Event(), threading.Event()
    with serving() as server:
        httpx.post(f"{server.url}/tokenize", json={"content": "load"}, timeout=30)
        tokenizer = server.engines["fake"].model.tokenizer
        encode = tokenizer.encode

        def slow(text: str, **options: bool) -> list[int]:
            if text == "long":
                reading.set()
                assert go_on.wait(20)
            return encode(text, **options)

        tokenizer.encode = slow  # type: ignore[method-assign]
        thread = threading.Thread(
            target=httpx.post,
            args=(f"{server.url}/tokenize",),
            kwargs={"json": {"content": "long"}, "timeout": 30},
        )
        thread.start()
        assert reading.wait(10)
        try:
            assert httpx.get(f"{server.url}/health", timeout=10).status_code == 200
            short = httpx.post(f"{server.url}/tokenize", json={"content": "short"}, timeout=10)
            assert short.json()["tokens"] == encode("short")
        finally:
            go_on.set()
            thread.join(20)


def test_a_constraint_is_compiled_before_the_engine_hears_of_it() -> None:
    threads: list[str] = []
    schema = {"type": "object", "properties": {"here": {"const": 1}}, "required": ["here"]}
    body = {
        "messages": [USER],
        "max_tokens": 8,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
    }
    with pytest.MonkeyPatch.context() as patch, serving() as server:
        compile_ = _Compiler._compile

        def spying(self: _Compiler, constraint: Constraint, source: Source) -> Any:
            threads.append(threading.current_thread().name)
            return compile_(self, constraint, source)

        patch.setattr(_Compiler, "_compile", spying)
        assert post(server, "/v1/chat/completions", body).status_code == 200
    assert len(threads) == 1
    assert threads[0].startswith("foredraft-prepare")


def test_a_default_length_above_the_limit_is_no_error() -> None:
    settings = ServerSettings(limits=Limits(max_completion_tokens=3))
    with serving(settings=settings, sampling=SamplingDefaults(max_tokens=50), end=-40.0) as server:
        reply = post(server, "/v1/chat/completions", {"messages": [USER]})
        assert reply.json()["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"messages": "\xff\xfe"}', "The body is not valid JSON: it is not UTF-8 text."),
        (gzip.compress(b"{}", mtime=0), "The body is not valid JSON: it is not UTF-8 text."),
        (b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "The body is nested too deeply."),
        (b'{"seed": ' + b"9" * 5000 + b"}", "The body contains a number with too many digits."),
    ],
)
def test_a_body_that_is_no_json_is_said_to_be_what_it_is(server: Running, content: bytes, says: str) -> None:
    for path in ("/v1/chat/completions", "/v1/messages", "/tokenize"):
        reply = httpx.post(
            f"{server.url}{path}", content=content, headers={"content-type": "application/json"}
        )
        assert reply.status_code == 400
        assert reply.json()["error"]["message"] == says
