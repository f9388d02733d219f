"""The console's log: the last lines, for the admin, with nothing in them that controls a terminal."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from foredraft.server.auth import hash_key, new_key
from foredraft.server.console.log_buffer import LOGGERS, MOST_LINE, MOST_LINES, LogBuffer
from foredraft.server.settings import KeySettings, ServerSettings
from http_server import Running, serving

ALICE, ADMIN = new_key(), new_key()
SETTINGS = ServerSettings(
    keys=(KeySettings(name="alice", hash=hash_key(ALICE)),), admin_key_hash=hash_key(ADMIN)
)


@pytest.fixture(scope="module")
def locked() -> Iterator[Running]:
    with serving(settings=SETTINGS) as running:
        yield running


def log_of(running: Running, key: str = ADMIN, after: int = 0) -> list[dict[str, Any]]:
    reply = httpx.get(
        f"{running.url}/console/log", params={"after": after}, headers={"x-api-key": key}, timeout=30
    )
    assert reply.status_code == 200
    lines: list[dict[str, Any]] = reply.json()["lines"]
    return lines


@pytest.mark.parametrize("name", LOGGERS)
def test_what_the_server_logs_is_there_for_the_admin(locked: Running, name: str) -> None:
    before = len(log_of(locked))
    logging.getLogger(f"{name}.part").warning("a thing of %s", name)
    lines = log_of(locked)
    assert (lines[-1]["text"], lines[-1]["level"]) == (f"a thing of {name}", "warning")
    assert len(lines) == before + 1
    assert log_of(locked, after=lines[-1]["number"]) == []
    assert [line["number"] for line in lines] == list(range(1, len(lines) + 1))


def test_requests_are_lines_but_reading_the_console_is_not(
    locked: Running, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "foredraft.requests")
    last = max((line["number"] for line in log_of(locked)), default=0)
    httpx.get(f"{locked.url}/nowhere", headers={"x-api-key": ALICE, "x-request-id": "mine"}, timeout=30)
    found = log_of(locked, after=last) or log_of(locked, after=last)
    assert [("/nowhere 404" in line["text"], "mine" in line["text"]) for line in found] == [(True, True)]
    assert ADMIN not in str(log_of(locked))
    assert ALICE not in str(log_of(locked))


@pytest.mark.parametrize("key", [ALICE, ""], ids=["a key", "no key"])
def test_nobody_else_reads_it(locked: Running, key: str) -> None:
    headers = {"x-api-key": key} if key else {}
    reply = httpx.get(f"{locked.url}/console/log", headers=headers, timeout=30)
    assert reply.status_code == (403 if key else 401)


def record(text: str, level: int = logging.INFO, **extra: Any) -> logging.LogRecord:
    return logging.LogRecord("foredraft.server", level, "", 0, text, (), **{"exc_info": None, **extra})


def test_it_is_bounded_and_its_numbers_go_on() -> None:
    buffer = LogBuffer()
    for number in range(MOST_LINES + 10):
        buffer.handle(record(f"line {number}"))
    buffer.handle(record("x" * 100_000))
    lines = buffer.lines()
    assert len(lines) == MOST_LINES
    assert lines[-1].number == MOST_LINES + 11
    assert len(lines[-1].text) == MOST_LINE
    assert buffer.lines(lines[-2].number) == [lines[-1]]


def test_control_characters_are_escaped_and_a_stack_trace_is_kept() -> None:
    buffer = LogBuffer()
    buffer.handle(record("\x1b[31mred\u202e\r", logging.ERROR))
    try:
        raise ValueError("\x1b[2J")
    except ValueError:
        buffer.handle(record("It broke.", logging.CRITICAL, exc_info=sys.exc_info()))
    plain, traced = buffer.lines()
    assert plain.text == "\\x1b[31mred\\u202e\\x0d"
    assert plain.level == traced.level == "error"
    assert traced.text.startswith("It broke.\nTraceback")
    assert "\x1b" not in traced.text


def test_a_server_that_has_ended_listens_no_more() -> None:
    ours = [logging.getLogger(name) for name in LOGGERS if name != "uvicorn"]  # its Config replaces them, too
    before = [list(logger.handlers) for logger in ours]
    with serving():
        assert [list(logger.handlers) for logger in ours] != before
    assert [list(logger.handlers) for logger in ours] == before
