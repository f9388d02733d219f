"""The log's line of each request: what it says, what it keeps to itself, and that nobody can forge one."""

from __future__ import annotations

import json
import logging
import re
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
import pytest

from foredraft import Engine
from foredraft.server.auth import hash_key
from foredraft.server.openai.chat import ChoiceWriter
from foredraft.server.request_log import JsonFormatter, TextFormatter, line_of
from foredraft.server.settings import KeySettings, ServerSettings
from foredraft.types import Event
from http_server import Running, serving

KEY = "ft-secret-key"
SETTINGS = ServerSettings(
    any_model_name=False,
    keys=(KeySettings(name="alice", hash=hash_key(KEY)),),
    cors_origins=("https://chat.example.org",),
)
BEARER = {"authorization": f"Bearer {KEY}"}
CHAT = "/v1/chat/completions"
WORDS = "the text of a user"
HELLO = {"messages": [{"role": "user", "content": WORDS}], "max_tokens": 3, "temperature": 0}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with serving(settings=SETTINGS) as running:
        yield running


class Lines:
    """The records of the log, as they come."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def __call__(self, count: int = 1) -> list[dict[str, Any]]:
        """The facts of so many lines: the last one is written when the answer is out already."""
        for _ in range(500):
            found = [record for record in self._caplog.records if record.name == "foredraft.requests"]
            if len(found) >= count:
                break
            time.sleep(0.01)
        assert len(found) == count
        for record in found:
            assert KEY not in record.getMessage()
            assert WORDS not in record.getMessage()
            assert record.getMessage().isprintable()
        return [getattr(record, "facts") for record in found]  # noqa: B009 - mypy knows no such attribute


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    caplog.set_level(logging.INFO, "foredraft.requests")
    return Lines(caplog)


# --- what it says --------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer(server: Running, lines: Lines, stream: bool) -> None:
    reply = httpx.post(f"{server.url}{CHAT}", json={**HELLO, "stream": stream}, headers=BEARER, timeout=30)
    [facts] = lines()
    assert (facts["method"], facts["path"], facts["status"]) == ("POST", CHAT, 200)
    assert (facts["caller"], facts["model"], facts["client"]) == ("alice", "fake", "127.0.0.1")
    assert facts["id"] == reply.headers["x-request-id"]
    assert facts["duration_ms"] > 0
    assert (facts["finish"], facts["completion_tokens"]) == ("length", 3)
    assert "error" not in facts


def test_several_answers_of_one_request(server: Running, lines: Lines) -> None:
    httpx.post(f"{server.url}{CHAT}", json={**HELLO, "n": 3}, headers=BEARER, timeout=30)
    [facts] = lines()
    assert [answer["completion_tokens"] for answer in facts["answers"]] == [3, 3, 3]


@pytest.mark.parametrize(
    ("path", "body", "headers", "status", "code", "says"),
    [
        (CHAT, {**HELLO, "max_tokens": 16.5}, BEARER, 400, "invalid_request", "max_tokens"),
        (CHAT, b"{", BEARER, 400, "invalid_request", "not valid JSON"),
        (CHAT, {**HELLO, "model": "x"}, BEARER, 404, "model_not_found", "'x'"),
        ("/v1/messages", {}, BEARER, 400, "invalid_request", "model"),
        (CHAT, HELLO, {}, 401, "invalid_api_key", "No API key"),
        (CHAT, HELLO, {"authorization": "Bearer wrong-secret"}, 401, "invalid_api_key", "not valid"),
        ("/nowhere", {}, BEARER, 404, "not_found", "There is no POST /nowhere"),
        ("/health", {}, BEARER, 405, "method_not_allowed", "POST"),
        (CHAT, b"x", {**BEARER, "content-type": "text/plain"}, 415, "unsupported_media_type", "text/plain"),
    ],
)
def test_a_refusal(
    server: Running,
    lines: Lines,
    path: str,
    body: Any,
    headers: dict[str, str],
    status: int,
    code: str,
    says: str,
) -> None:
    sent: Any = {"content": body} if isinstance(body, bytes) else {"json": body}
    kind = {"content-type": "application/json"} if isinstance(body, bytes) else {}
    reply = httpx.post(f"{server.url}{path}", headers={**kind, **headers}, **sent, timeout=30)
    assert reply.status_code == status
    [facts] = lines()
    assert (facts["method"], facts["path"], facts["status"]) == ("POST", path, status)
    assert facts["code"].startswith(code)
    assert says in facts["error"]
    assert facts["id"] == reply.headers["x-request-id"]
    assert "wrong-secret" not in json.dumps(facts)


def test_a_page_that_was_not_listed(server: Running, lines: Lines) -> None:
    asked = {"origin": "https://evil.example", "access-control-request-method": "POST"}
    assert httpx.options(f"{server.url}{CHAT}", headers=asked).status_code == 400
    [facts] = lines()
    assert (facts["method"], facts["status"], facts["error"]) == ("OPTIONS", 400, "Disallowed CORS origin")


def test_a_fault_of_the_server(
    server: Running, lines: Lines, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(writer: ChoiceWriter, events: object) -> None:
        raise ValueError("/secret/path")

    monkeypatch.setattr(ChoiceWriter, "write", broken)
    headers = {**BEARER, "origin": "https://chat.example.org"}
    reply = httpx.post(f"{server.url}{CHAT}", json=HELLO, headers=headers, timeout=30)
    assert reply.status_code == 500
    assert "secret" not in reply.text
    assert reply.headers["access-control-allow-origin"], "pages can read it, too"
    [facts] = lines()
    assert (facts["status"], facts["code"]) == (500, "internal")
    number = re.search(r"[0-9a-f]{8}", facts["error"])
    assert number is not None
    [told] = [record for record in caplog.records if record.name == "foredraft.server.errors"]
    assert number[0] in told.getMessage()
    assert "/secret/path" in TextFormatter().format(told), "the log says more"


def test_an_answer_that_breaks_off(server: Running, lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    httpx.post(f"{server.url}{CHAT}", json=HELLO, headers=BEARER, timeout=30)

    step, rounds = Engine.step, iter((True, True))

    def failing(engine: Engine) -> list[Event]:
        if next(rounds, False):
            return step(engine)
        raise RuntimeError

    monkeypatch.setattr(Engine, "step", failing)
    httpx.post(f"{server.url}{CHAT}", json={**HELLO, "max_tokens": 90, "stream": True}, headers=BEARER)
    facts = lines(2)[1]
    assert (facts["status"], facts["code"]) == (200, "backend_error")
    assert facts["error"]


def test_a_client_that_left(server: Running, lines: Lines) -> None:
    body = {**HELLO, "max_tokens": 2000, "stream": True}
    with httpx.stream("POST", f"{server.url}{CHAT}", json=body, headers=BEARER, timeout=30) as reply:
        next(reply.iter_lines())
    [facts] = lines()
    assert (facts["status"], facts["finish"]) == (200, "abort")


@pytest.mark.parametrize(
    ("sent", "status"),
    [(b"nonsense\r\n\r\n", 400), (b"GET / HTTP/1.1\r\nx: " + b"y" * 1_000_000, 431)],
)
def test_what_is_no_request(server: Running, lines: Lines, sent: bytes, status: int) -> None:
    """Refused by the connection, before there is a path."""
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), 10) as connection:
        with suppress(ConnectionError):
            connection.sendall(sent)
        assert f" {status} ".encode() in connection.recv(100)
    [facts] = lines()
    assert (facts["status"], facts["client"]) == (status, "127.0.0.1")


def test_what_is_asked_again_and_again_is_told_only_where_it_is_refused(
    server: Running, lines: Lines
) -> None:
    for path in ("/health", "/metrics", "/v1/speculation"):
        assert httpx.get(f"{server.url}{path}", headers=BEARER).status_code == 200
    page = {**BEARER, "sec-fetch-site": "same-origin"}
    assert httpx.get(f"{server.url}/v1/models", headers=page).status_code == 200
    assert httpx.get(f"{server.url}/metrics").status_code == 401
    assert httpx.get(f"{server.url}/v1/models", headers=BEARER).status_code == 200
    assert [(line["path"], line["status"]) for line in lines(2)] == [("/metrics", 401), ("/v1/models", 200)]


# --- ids -----------------------------------------------------------------------------------------------


def test_a_request_keeps_the_id_that_its_client_gave_it(server: Running, lines: Lines) -> None:
    reply = httpx.post(f"{server.url}{CHAT}", json=HELLO, headers={**BEARER, "x-request-id": "mine-1"})
    assert reply.headers["x-request-id"] == lines()[0]["id"] == "mine-1"


@pytest.mark.parametrize("given", ["a b", "x" * 200, 'a"b', "é"])
def test_an_id_that_a_log_cannot_hold_is_replaced(server: Running, lines: Lines, given: str) -> None:
    headers: Any = {b"authorization": BEARER["authorization"].encode(), b"x-request-id": given.encode()}
    reply = httpx.post(f"{server.url}{CHAT}", json=HELLO, headers=headers)
    assert re.fullmatch(r"req_[0-9a-f]{24}", reply.headers["x-request-id"])
    assert lines()[0]["id"] == reply.headers["x-request-id"]


def test_clients_of_anthropic_find_the_id_under_its_name(server: Running, lines: Lines) -> None:
    body = {"model": "fake", "messages": HELLO["messages"], "max_tokens": 1}
    for sent in (body, {}):
        reply = httpx.post(f"{server.url}/v1/messages", json=sent, headers=BEARER, timeout=30)
        assert reply.headers["request-id"] == reply.headers["x-request-id"]
    assert [facts["status"] for facts in lines(2)] == [200, 400]


# --- nobody can forge a line ---------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["a\nPOST / 200", "\x1b[31mred", "a\u2028b", "a\u202eb", "\x7f\x9b"])
def test_control_characters_are_escaped(server: Running, lines: Lines, text: str) -> None:
    httpx.post(f"{server.url}{CHAT}", json={**HELLO, "model": text}, headers=BEARER, timeout=30)
    httpx.post(f"{server.url}{CHAT}", json={**HELLO, text: 1}, headers=BEARER, timeout=30)
    httpx.post(f"{server.url}/nowhere/{quote(text)}?key={KEY}", json={}, headers=BEARER)
    assert [facts["status"] for facts in lines(3)][::2] == [404, 404]


def test_bytes_of_a_path_are_escaped(server: Running, lines: Lines) -> None:
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), 10) as connection:
        connection.sendall(b"GET /a\xff\xc2\x9b HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
        while connection.recv(1000):
            pass
    assert lines()[0]["status"] in (400, 401)


# --- forms ---------------------------------------------------------------------------------------------


def record(message: str, level: int = logging.INFO, **extra: Any) -> logging.LogRecord:
    made = logging.LogRecord("foredraft.requests", level, "", 0, message, (), None)
    made.__dict__.update(extra)
    return made


def test_lines_have_the_time() -> None:
    facts = {"method": "POST", "path": "/x", "status": 400, "duration_ms": 12.3, "caller": "a", "model": None}
    text = TextFormatter().format(record(line_of(facts)))
    assert re.fullmatch(r'\d{4}-\d\d-\d\d \d\d:\d\d:\d\d POST /x 400 12ms caller="a"', text)
    made = json.loads(JsonFormatter().format(record(line_of(facts), facts=facts)))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", made.pop("time"))
    assert made == facts


def test_other_lines_have_the_time_too() -> None:
    made = record("Bad\x1b[31m\nnews", logging.ERROR)
    assert re.match(r"\d{4}-.* error: Bad\\x1b\[31m\nnews", TextFormatter().format(made))
    found = json.loads(JsonFormatter().format(made))
    assert (found["level"], found["message"]) == ("error", "Bad\x1b[31m\nnews")
