"""Every route of the console, and what loads models, found in the application itself, against who must not
use it.

A route that is added is walked over here without being named: a change that anybody but the admin may make
fails, and so does a reading that needs no key.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute

from foredraft.server.app import build_app
from foredraft.server.auth import hash_key, new_key
from foredraft.server.console.parts import Parts
from foredraft.server.page.built import FILES
from foredraft.server.pool import ModelPool
from foredraft.server.settings import KeySettings, ModelSettings, ServerSettings
from http_server import Running, serving

ALICE, BOB, ADMIN = new_key(), new_key(), new_key()
LISTED = "https://chat.example.org"
SETTINGS = ServerSettings(
    keys=(KeySettings(name="alice", hash=hash_key(ALICE)), KeySettings(name="bob", hash=hash_key(BOB))),
    admin_key_hash=hash_key(ADMIN),
    cors_origins=(LISTED,),
)
SECRET = "only alice may know this"
FROM_ELSEWHERE = {"x-forwarded-for": "192.0.2.7"}
"""What a proxy on this machine says of a request: the server believes it, so the request comes from there."""
READING = {"GET", "HEAD"}
OWN = {"/console/requests/{request_id}/stop"}
"""Changes that a key may make to what is its own; of others' it finds nothing (404)."""


@dataclass(frozen=True, slots=True)
class Way:
    """A method of a path."""

    method: str
    path: str

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    def filled(self, value: str = "fake") -> str:
        """The path with a value for each parameter."""
        return "/".join(value if part.startswith("{") else part for part in self.path.split("/"))


def routes_below(routes: Iterable[Any]) -> Iterator[APIRoute]:
    """All routes, those of included routers, too."""
    for route in routes:
        if isinstance(route, APIRoute):
            yield route
        elif hasattr(route, "original_router"):
            yield from routes_below(route.original_router.routes)


@cache
def ways() -> tuple[Way, ...]:
    models = {"fake": ModelSettings(path="fake")}
    app = build_app(ModelPool(ServerSettings(models=models), lambda _: pytest.fail("not loaded")))
    found = [
        Way(method, route.path)
        for route in routes_below(app.routes)
        if route.path.startswith("/console") or route.path.endswith(("/load", "/unload"))
        for method in sorted(route.methods or ())
    ]
    documented = {
        (method.upper(), path.replace("{name}", ""))
        for path, methods in app.openapi()["paths"].items()
        if path.startswith("/console")
        for method in methods
    }
    seen = {(way.method, way.path.replace("{name:path}", "").replace("{name}", "")) for way in found}
    assert documented <= seen, "the walk misses some"
    assert {way.path for way in found} >= {f"/v1/models/{{name:path}}/{what}load" for what in ("", "un")}
    assert len(found) > 15
    return tuple(found)


CHANGES = [way for way in ways() if way.method not in READING]
READS = [way for way in ways() if way.method in READING]


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    file = tmp_path_factory.mktemp("settings") / "foredraft.toml"
    with serving(settings=SETTINGS, console=Parts(settings_file=file)) as running:
        yield running
        assert not file.exists(), "something was changed"


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Without keys, for everybody who reaches it."""
    file = tmp_path_factory.mktemp("settings") / "foredraft.toml"
    with serving(console=Parts(settings_file=file), allow_public=True) as running:
        yield running
        assert not file.exists(), "something was changed"


def send(running: Running, way: Way, path: str | None = None, **options: Any) -> httpx.Response:
    body: dict[str, Any] = {} if way.method in READING or "content" in options else {"json": {}}
    address = running.url + (path or way.filled())
    with httpx.stream(way.method, address, timeout=30, **{**body, **options}) as reply:
        if not reply.headers.get("content-type", "").startswith("text/event-stream"):
            reply.read()
        return reply


def key(value: str, **more: str) -> dict[str, str]:
    return {"x-api-key": value, **{name.replace("_", "-"): text for name, text in more.items()}}


# --- who -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", CHANGES, ids=str)
def test_nobody_but_the_admin_changes_anything(locked: Running, way: Way) -> None:
    refused = send(locked, way, headers=key(BOB))
    assert refused.status_code == (404 if way.path in OWN else 403), refused.text


@pytest.mark.parametrize("way", ways(), ids=str)
@pytest.mark.parametrize("headers", [{}, {"x-api-key": "ft-wrong"}, {"authorization": "Bearer"}])
def test_nothing_is_there_without_a_key(locked: Running, way: Way, headers: dict[str, str]) -> None:
    refused = send(locked, way, headers=headers)
    assert refused.status_code == 401
    assert "alice" not in refused.text


# --- from where ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ways(), ids=str)
@pytest.mark.parametrize(
    "foreign",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": LISTED},
        {"origin": "http://127.0.0.1:1"},
        {"origin": "http://["},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
    ],
    ids=str,
)
def test_pages_of_other_origins_get_nothing_even_with_the_admin_key(
    locked: Running, way: Way, foreign: dict[str, str]
) -> None:
    assert send(locked, way, headers=key(ADMIN, **foreign)).status_code == 403


@pytest.mark.parametrize("way", CHANGES, ids=str)
def test_a_form_changes_nothing(locked: Running, way: Way) -> None:
    """What a page may send without permission: text, forms, and nothing at all."""
    own = {"origin": locked.url, "sec_fetch_mode": "cors"}
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        headers = key(ADMIN, **own, content_type=kind) if kind else key(ADMIN, **own)
        assert send(locked, way, headers=headers, content=b"{}").status_code == 415
    if way.method != "DELETE":  # which needs permission itself
        assert send(locked, way, headers=key(ADMIN, **own), content=b"").status_code == 415


def test_listed_origins_may_use_models_not_the_console(locked: Running) -> None:
    asked = {"origin": LISTED, "access-control-request-method": "PUT"}
    permission = httpx.options(f"{locked.url}/console/recording", headers=asked)
    assert permission.status_code == 200
    body = {"prompt": "x", "max_tokens": 1}
    answer = httpx.post(
        f"{locked.url}/v1/completions", json=body, headers=key(BOB, origin=LISTED), timeout=30
    )
    assert answer.status_code == 200


def test_a_request_without_a_host_has_no_origin_of_ours(locked: Running) -> None:
    address = httpx.URL(locked.url)
    with socket.create_connection((address.host, address.port), 10) as connection:
        connection.sendall(
            f"GET /console/session HTTP/1.0\r\norigin: null\r\nx-api-key: {ADMIN}\r\n\r\n".encode()
        )
        assert b" 403 " in connection.recv(1000)


@pytest.mark.parametrize("way", ways(), ids=str)
def test_a_domain_that_is_pointed_here_finds_nothing_on_a_server_for_this_computer(
    server: Running, way: Way
) -> None:
    assert send(server, way, headers={"host": "evil.example"}).status_code == 403


@pytest.mark.parametrize("way", CHANGES, ids=str)
def test_a_domain_that_is_pointed_here_changes_nothing_on_a_public_server(public: Running, way: Way) -> None:
    rebound = {"host": "evil.example:80", "origin": "http://evil.example:80"}
    refused = send(public, way, headers=rebound)
    assert refused.status_code == (404 if way.path in OWN else 403), refused.text


def test_by_a_name_a_public_server_is_read_but_not_as_its_admin(public: Running) -> None:
    def get(path: str, host: str) -> httpx.Response:
        return httpx.get(f"{public.url}/console/{path}", headers={"host": host}, timeout=30)

    for path in ("log", "keys"):
        refused = get(path, "evil.example")
        assert refused.status_code == 403
        assert "by number" in refused.json()["error"]["message"]
    for host, admin in (
        ("evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("10.0.0.7:8080", True),
        ("[::1]:8080", True),
        ("[fe80::1]", True),
        ("localhost", True),
    ):
        assert get("session", host).json()["admin"] is admin, host


@pytest.mark.parametrize("way", CHANGES, ids=str)
def test_from_another_machine_nothing_of_a_public_server_is_changed(public: Running, way: Way) -> None:
    refused = send(public, way, headers=FROM_ELSEWHERE)
    assert refused.status_code == (404 if way.path in OWN else 403), refused.text


def test_from_another_machine_a_public_server_is_used_but_not_as_its_admin(public: Running) -> None:
    def session(**headers: str) -> Any:
        return httpx.get(f"{public.url}/console/session", headers=headers, timeout=30).json()

    assert session(**FROM_ELSEWHERE)["admin"] is False
    assert session()["admin"] is True
    for path in ("log", "keys"):
        refused = httpx.get(f"{public.url}/console/{path}", headers=FROM_ELSEWHERE, timeout=30)
        assert refused.status_code == 403
        assert "own machine" in refused.json()["error"]["message"]
    body = {"prompt": "x", "max_tokens": 1}
    answer = httpx.post(f"{public.url}/v1/completions", json=body, headers=FROM_ELSEWHERE, timeout=30)
    assert answer.status_code == 200


def test_the_first_valid_key_says_who_it_is(locked: Running) -> None:
    for authorization, api_key, name in (
        (ALICE, ADMIN, "alice"),
        ("ft-wrong", ADMIN, "admin"),
        (ADMIN, BOB, "admin"),
    ):
        headers = {"authorization": f"Bearer {authorization}", "x-api-key": api_key}
        reply = httpx.get(f"{locked.url}/console/session", headers=headers, timeout=30).json()
        assert reply["caller"] == name
        assert reply["admin"] is (name == "admin")


@pytest.mark.parametrize(
    "path", ["//console/session", "/console/../console/session", "/console/%73ession", "/Console/session"]
)
def test_odd_spellings_of_a_path_need_a_key_too(locked: Running, path: str) -> None:
    assert httpx.get(httpx.URL(locked.url).copy_with(raw_path=path.encode()), timeout=30).status_code == 401


# --- what is shown ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [*FILES, "/docs"])
def test_no_page_can_be_framed_or_guessed(locked: Running, path: str) -> None:
    reply = httpx.get(f"{locked.url}{path}", timeout=30)
    assert reply.status_code == 200
    assert "frame-ancestors 'none'" in reply.headers["content-security-policy"]
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert "unsafe" not in reply.headers["content-security-policy"]


def test_nothing_of_one_keys_texts_is_seen_with_another(locked: Running) -> None:
    recording = f"{locked.url}/console/recording"
    assert httpx.put(recording, json={"on": True}, headers=key(ADMIN)).status_code == 200
    body = {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 300, "temperature": 0}
    told = httpx.post(
        f"{locked.url}/v1/chat/completions", json=body, headers=key(ALICE, x_request_id="hers"), timeout=30
    ).json()["choices"][0]["message"]["content"]
    texts = (SECRET, json.dumps(told)[1:40])
    own = httpx.get(f"{locked.url}/console/requests/hers", headers=key(ADMIN), timeout=30).text
    assert all(text in own for text in texts), "it is there"
    for way in READS:
        for value in ("hers", "fake"):
            if way.path.endswith("/events"):
                continue
            seen = send(locked, way, way.filled(value), headers=key(BOB)).text
            assert not any(text in seen for text in (*texts, '"alice"')), way
            hers = send(locked, way, way.filled(value), headers=key(ALICE)).text
            assert not any(text in hers for text in texts), "not even with her key: only the admin records"
    assert not any(text in followed(locked, BOB) for text in (*texts, '"alice"'))
    httpx.put(recording, json={"on": False}, headers=key(ADMIN))
    assert SECRET not in followed(locked, ADMIN)


def followed(running: Running, caller: str) -> str:
    """What the stream of events says at first, about everything."""
    url = f"{running.url}/console/events?topics=none"
    refused = httpx.get(url, headers=key(caller), timeout=30).json()["error"]["message"]
    topics = refused.partition("Topics: ")[2].rstrip(".").replace(", ", ",")
    text, began = "", time.monotonic()
    url = url.replace("none", topics)
    with httpx.stream("GET", url, headers=key(caller), timeout=30) as reply:
        assert reply.status_code == 200
        for line in reply.iter_lines():
            text += line
            if time.monotonic() - began > 1.5:
                break
            if all(f"event: {topic}" in text for topic in ("requests", "benchmarks", "speculation")):
                break
    assert "event: requests" in text
    return text


def test_settings_of_keys_stay_with_the_admin(locked: Running, tmp_path: Path) -> None:
    for way in READS:
        if not way.path.endswith("/events"):
            assert "sha256:" not in send(locked, way, headers=key(ADMIN)).text, way
