"""Keys, limits, and that one key's text never reaches another."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest

from foredraft.server import gate
from foredraft.server.auth import hash_key, new_key
from foredraft.server.page.docs import ASSETS
from foredraft.server.settings import KeySettings, Limits, ServerSettings
from http_server import Running, serving

ALICE, BOB, ADMIN = new_key(), new_key(), new_key()
KEYS = ServerSettings(
    keys=(
        KeySettings(name="alice", hash=hash_key(ALICE)),
        KeySettings(name="bob", hash=hash_key(BOB), requests_per_minute=30),
    ),
    admin_key_hash=hash_key(ADMIN),
    limits=Limits(max_body_bytes=4096),
)


@pytest.fixture(scope="module")
def guarded() -> Iterator[Running]:
    with serving("fake", settings=KEYS, speculate="ngram-mod:n=4,min=1,max=16") as running:
        yield running


def ask(running: Running, key: str | None, text: str = "hello", **options: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 60, "temperature": 0, **options}
    return httpx.post(f"{running.url}/v1/chat/completions", json=body, headers=headers, timeout=30)


def test_only_keys_get_in(guarded: Running) -> None:
    assert ask(guarded, ALICE).status_code == 200
    for key in (None, "ft-wrong", ALICE + "x"):
        reply = ask(guarded, key)
        assert reply.status_code == 401
        assert reply.json()["error"]["type"] == "authentication_error"
        assert reply.headers["WWW-Authenticate"] == "Bearer"
        assert not key or key not in reply.text


@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/v1/speculation", "/docs/other"])
def test_everything_else_wants_a_key(guarded: Running, path: str) -> None:
    assert httpx.get(guarded.url + path).status_code == 401
    with_key = httpx.get(guarded.url + path, headers={"x-api-key": ALICE})
    assert with_key.status_code == (404 if path == "/docs/other" else 200)


@pytest.mark.parametrize("path", ["/health", "/", "/docs", "/docs/", *(f"/docs/{name}" for name in ASSETS)])
def test_health_and_the_pages_want_none(guarded: Running, path: str) -> None:
    assert httpx.get(guarded.url + path).status_code == 200


def test_the_document_of_the_api_says_nothing_of_models_and_keys(guarded: Running) -> None:
    ask(guarded, ALICE)
    reply = httpx.get(f"{guarded.url}/openapi.json")
    assert reply.status_code == 200
    assert not {"fake", "alice", "bob"} & set(re.findall(r"\w+", reply.text))
    document = reply.json()
    (name,) = document["components"]["securitySchemes"]
    assert {name: []} in document["security"], "Swagger UI asks for a key"


def test_anthropic_s_paths_refuse_in_their_form(guarded: Running) -> None:
    reply = httpx.post(f"{guarded.url}/v1/messages", json={})
    assert reply.status_code == 401
    assert reply.json()["type"] == "error"


def test_the_client_s_exceptions(guarded: Running) -> None:
    with (
        openai.OpenAI(base_url=f"{guarded.url}/v1", api_key="ft-no", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.models.list()


def test_drafts_never_come_from_another_key_s_text(guarded: Running) -> None:
    """Asked again by the same key, it is drafted from what the engine has seen; by another it is not."""
    question = "tell me the secret"

    def accepted(key: str) -> int:
        return int(ask(guarded, key, question).json()["timings"]["draft_n_accepted"])

    first, again, other = accepted(ALICE), accepted(ALICE), accepted(BOB)
    assert again > first
    assert other == first


def test_prefixes_are_not_shared_between_keys(guarded: Running) -> None:
    """How fast a prompt is read would tell one what the other has asked."""
    question = "a prompt of some length " * 4

    def cached(key: str) -> int:
        usage = ask(guarded, key, question).json()["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    assert cached(ALICE) < 20
    assert cached(ALICE) > 80
    assert cached(BOB) < 20


def test_a_key_s_rate_is_its_own() -> None:
    # Few, so that a slow computer does not earn another one meanwhile.
    alice, bob = KEYS.keys
    with serving(settings=replace(KEYS, keys=(alice, replace(bob, requests_per_minute=2)))) as running:
        codes = [ask(running, BOB, max_tokens=1).status_code for _ in range(3)]
        assert codes == [200] * 2 + [429]
        refused = ask(running, BOB)
        assert int(refused.headers["Retry-After"]) >= 1
        assert refused.json()["error"]["type"] == "rate_limit_error"
        assert ask(running, ALICE).status_code == 200


def test_the_console_takes_nothing_of_a_key_s_limits_and_is_not_shut_by_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gate, "CONSOLE_PER_MINUTE", 6)
    alice, bob = KEYS.keys
    limited = replace(bob, requests_per_minute=1, max_concurrent=1)
    with serving(settings=replace(KEYS, keys=(alice, limited))) as running:

        def console() -> int:
            headers = {"x-api-key": BOB}
            return httpx.get(f"{running.url}/console/session", headers=headers, timeout=30).status_code

        assert [console() for _ in range(5)] == [200] * 5
        assert ask(running, BOB, max_tokens=1).status_code == 200
        assert ask(running, BOB, max_tokens=1).status_code == 429
        assert console() == 200
        assert 429 in [console() for _ in range(20)], "it has a limit of its own"
        assert ask(running, ALICE).status_code == 200


def test_only_the_admin_loads_and_unloads(guarded: Running) -> None:
    url = f"{guarded.url}/v1/models/fake/unload"
    assert httpx.post(url, headers={"x-api-key": ALICE}).status_code == 403
    assert ask(guarded, ALICE).status_code == 200
    assert httpx.post(url, headers={"x-api-key": ADMIN}).json()["was_loaded"] is True
    listed = httpx.get(f"{guarded.url}/v1/models", headers={"x-api-key": ALICE}).json()["data"]
    assert [entry["loaded"] for entry in listed] == [False]
    assert ask(guarded, ALICE).status_code == 200


def test_bodies_have_a_size(guarded: Running) -> None:
    assert ask(guarded, ALICE, "x" * 5000).status_code == 413

    def pieces() -> Iterator[bytes]:
        for _ in range(100):
            yield b" " * 1000

    headers = {"x-api-key": ALICE, "content-type": "application/json"}
    reply = httpx.post(f"{guarded.url}/v1/chat/completions", content=pieces(), headers=headers)
    assert reply.status_code == 413
    assert "4096" in reply.json()["error"]["message"]


def test_web_pages_cannot_post_unasked() -> None:
    """A browser sends text/plain to any server without asking it first, and JSON not."""
    with serving() as running:
        for kind in ("text/plain", "application/x-www-form-urlencoded"):
            reply = httpx.post(
                f"{running.url}/v1/chat/completions", content=b"{}", headers={"content-type": kind}
            )
            assert reply.status_code == 415
        assert "access-control-allow-origin" not in httpx.get(f"{running.url}/health").headers


def test_another_name_for_this_computer_is_refused() -> None:
    """A page's own domain that resolves to 127.0.0.1 would make this server the page's own."""
    with serving() as running:
        reply = httpx.get(f"{running.url}/v1/models", headers={"host": "evil.example:80"})
        assert reply.status_code == 403
        assert httpx.get(f"{running.url}/v1/models").status_code == 200


def test_nothing_of_the_inside_goes_out(guarded: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(guarded, ALICE)
    engine = guarded.engines["fake"]

    def broken(*args: object, **options: object) -> int:
        raise OSError("/home/someone/secret.gguf is gone")

    monkeypatch.setattr(engine, "add", broken)
    reply = ask(guarded, ALICE)
    assert reply.status_code == 500
    assert "secret" not in reply.text
    assert "Internal error" in reply.json()["error"]["message"]


def test_half_a_request_does_not_stop_the_others(guarded: Running) -> None:
    host, port = guarded.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as line:
        line.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{"
        )
        assert ask(guarded, ALICE).status_code == 200
