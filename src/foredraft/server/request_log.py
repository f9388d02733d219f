"""The request log: one line for each request, answered or refused, in the logger `foredraft.requests`; and
request ids.

Lines contain no text, no key and no query. Values from clients (a path, an error message) are escaped so that
they cannot end the line or control a terminal.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import perf_counter
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from foredraft.server.anthropic.errors import is_anthropic

logger = logging.getLogger("foredraft.requests")

ID, ANTHROPIC_ID, IGNORED = "x-request-id", "request-id", "x-foredraft-ignored"
SHOWN = (ID, ANTHROPIC_ID, IGNORED, "retry-after")
"""Response headers that a web page may read."""

POLLED = ("/health", "/metrics", "/v1/speculation")
"""Paths that programs poll: logged only if refused."""

MOST_PATH = 200
MOST_ERROR = 300
MOST_NAMES = 20
MOST_NAME = 80
"""Maximum characters of a path and of an error message; maximum number and length of ignored names."""

_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_CONTROL = {
    code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    for code in (*range(0x20), *range(0x7F, 0xA0), *range(0x2028, 0x202F), *range(0x2066, 0x206A))
}
"""Line ends, terminal control characters, and characters that change the text direction."""

_OF_TRACES = {code: text for code, text in _CONTROL.items() if chr(code) not in "\n\t"}


@dataclass(slots=True)
class Entry:
    """Facts about a request, collected while it is handled. `caller`: the name of its key. `ignored`: fields
    of its body without effect. `answers`: the log's description of each answer, from `metrics`. `code` and
    `error`: why it was refused, or why its answer broke off.
    """

    id: str
    began: float = field(default_factory=perf_counter)
    caller: str | None = None
    model: str | None = None
    ignored: tuple[str, ...] = ()
    answers: list[Mapping[str, Any]] = field(default_factory=list)
    code: str | None = None
    error: str | None = None

    def failed(self, code: str | None, message: str) -> None:
        """Note that the request was refused or broke off."""
        self.code, self.error = code, message[:MOST_ERROR]


_current: ContextVar[Entry | None] = ContextVar("entry", default=None)


def current() -> Entry:
    """The entry of the current request; outside of requests one that is not logged."""
    return _current.get() or Entry("")


class RequestLog:
    """ASGI middleware around all others, so that it also sees what they refuse."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        entry = Entry(_id_of(headers.get(ID)))
        _current.set(entry)
        answer = _Answer(entry, send, anthropic=is_anthropic(scope["path"]))
        try:
            await self._app(scope, receive, answer.send)
        finally:
            if logger.isEnabledFor(logging.INFO) and not _polled(scope, headers, answer.status):
                log({**_asked(scope), **answer.facts()})


class _Answer:
    """Sends an answer with the request's headers, and keeps the facts for the log."""

    def __init__(self, entry: Entry, send: Send, *, anthropic: bool) -> None:
        self.status = 499  # as in nginx: the client left before the answer
        self._entry = entry
        self._send = send
        self._anthropic = anthropic
        self._whole = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers[ID] = self._entry.id
            if self._anthropic:
                headers[ANTHROPIC_ID] = self._entry.id
            if self._entry.ignored:
                names = _cut(self._entry.ignored)  # without characters that headers cannot contain
                headers[IGNORED] = ", ".join(json.dumps(name)[1:-1] for name in names)
        elif (
            self.status >= 400 and self._entry.error is None
        ):  # errors of the framework, which are plain text
            self._entry.failed(None, message.get("body", b"").decode("utf-8", "replace"))
        self._whole = self._whole or not message.get("more_body", message["type"] == "http.response.start")
        await self._send(message)

    def facts(self) -> dict[str, Any]:
        entry = self._entry
        facts: dict[str, Any] = {
            "status": self.status,
            "duration_ms": round(1e3 * (perf_counter() - entry.began), 1),
            "id": entry.id,
            "caller": entry.caller,
            "model": entry.model,
            "code": entry.code,
        }
        if entry.ignored:
            facts["ignored"] = _cut(entry.ignored)
        if len(entry.answers) == 1:
            facts |= entry.answers[0]
        elif entry.answers:
            facts["answers"] = entry.answers
        elif not self._whole:
            facts["finish"] = "abort"
        return facts | ({"error": entry.error} if entry.error else {})


def log(facts: Mapping[str, Any]) -> None:
    """Write one line. The record also has the facts, for other formatters."""
    logger.info("%s", line_of(facts), extra={"facts": facts})


def refused(status: int, client: tuple[str, int] | None) -> None:
    """Write the line of a connection that was refused before it sent a complete request."""
    log({"client": client[0] if client else None, "method": None, "path": None, "status": status})


def line_of(facts: Mapping[str, Any]) -> str:
    """Method, path, status and time, then the other known facts by name."""
    known = {name: value for name, value in facts.items() if value not in (None, {}, ())}
    head = [str(known.pop(name)) for name in ("client", "method", "path", "status") if name in known]
    if (duration := known.pop("duration_ms", None)) is not None:
        head.append(f"{duration:.0f}ms")
    return " ".join([*head, *(f"{name}={json.dumps(value)}" for name, value in known.items())])


class TextFormatter(logging.Formatter):
    """Formats the time and the line; warnings and errors with their level."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """One line, or more with a stack trace."""
        text = super().format(record).translate(_OF_TRACES)
        if record.levelno <= logging.INFO:
            return text
        time = self.formatTime(record, self.datefmt)
        return f"{time} {record.levelname.lower()}:{text.removeprefix(time)}"


class JsonFormatter(logging.Formatter):
    """Formats every record as one JSON object in one line."""

    def format(self, record: logging.LogRecord) -> str:
        """The record's facts; for a record without facts its level, message and stack trace."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        facts = getattr(record, "facts", None)
        if facts is None:
            facts = {"level": record.levelname.lower(), "message": record.getMessage()}
            if record.exc_info:
                facts["trace"] = self.formatException(record.exc_info)
        return json.dumps({"time": time, **facts})


def _id_of(given: str | None) -> str:
    """The client's own request id, if it is safe for logs and headers."""
    return given if given and _ID.fullmatch(given) else f"req_{secrets.token_hex(12)}"


def _polled(scope: Scope, headers: Headers, status: int) -> bool:
    """Whether it is a successful routine request that would flood the log: polling by monitors, browsers and
    our own pages.
    """
    if status >= 400 or scope["method"] not in ("GET", "HEAD", "OPTIONS"):
        return False
    by_itself = scope["method"] == "OPTIONS" or headers.get("sec-fetch-site") == "same-origin"
    return by_itself or scope["path"].rstrip("/") in POLLED


def _asked(scope: Scope) -> dict[str, Any]:
    path = scope.get("raw_path", scope["path"].encode()).decode("ascii", "backslashreplace")
    client = scope.get("client")
    return {
        "client": client[0] if client else None,
        "method": scope["method"],
        "path": path.translate(_CONTROL)[:MOST_PATH],
    }


def _cut(names: Sequence[str]) -> list[str]:
    """Limit the number and length of names, and add how many were left out."""
    shown, more = [name[:MOST_NAME] for name in names[:MOST_NAMES]], len(names) - MOST_NAMES
    return [*shown, f"and {more} more"] if more > 0 else shown
