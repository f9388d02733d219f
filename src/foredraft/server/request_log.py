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
from time import perf_counter, time
from typing import TYPE_CHECKING, Any, Protocol

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from foredraft.server.anthropic.errors import is_anthropic
from foredraft.server.transcript import Transcript

if TYPE_CHECKING:
    from foredraft.server.metrics import Watch

logger = logging.getLogger("foredraft.requests")

ID, ANTHROPIC_ID, IGNORED = "x-request-id", "request-id", "x-foredraft-ignored"
SHOWN = (ID, ANTHROPIC_ID, IGNORED, "retry-after")
"""Response headers that a web page may read."""

POLLED = ("/health", "/metrics", "/v1/speculation")
"""Paths that programs poll: logged only if refused. So is reading the console."""

MOST_PATH = 200
MOST_ERROR = 300
MOST_NAMES = 20
MOST_NAME = 80
"""Maximum characters of a path and of an error message; maximum number and length of ignored names."""

SHORTEST_S = 0.001
"""Seconds that a request has at least: its deadline then ends it with an error."""

_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_CONTROL = {
    code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    for code in (*range(0x20), *range(0x7F, 0xA0), *range(0x2028, 0x202F), *range(0x2066, 0x206A))
}
"""Line ends, terminal control characters, and characters that change the text direction."""

_OF_TRACES = {code: text for code, text in _CONTROL.items() if chr(code) not in "\n\t"}


def escaped(text: str) -> str:
    """A log's text with its control characters escaped; of them line ends and tabs stay, for stack traces."""
    return text.translate(_OF_TRACES)


@dataclass(slots=True)
class Entry:
    """Facts about a request, collected while it is handled. `caller`: the name of its key; `identity` and
    `admin`: as in `Caller`. `ignored`: fields of its body without effect. `watches`: its answers, as they
    come; `answers`: the log's description of each that has ended, from `metrics`; `each`: how many a prompt
    gets. `path`: as it was sent, for the log; `route`: decoded and without a slash at its end, as it is
    answered. `headers`: as they came, keys among them. `asked`: the model's name in the request, `model`: the
    one that answers. `code` and `error`: why it was refused, or why its answer broke off. `at`: Unix time of
    its arrival. `transcript`: its texts, if they are recorded. `stopped`: why it is to end early. `waited`:
    seconds before it came to this process; `measured`: what another process that answered it has measured
    (`telemetry.answer_attributes`).
    """

    id: str
    method: str = ""
    path: str = ""
    route: str = ""
    at: float = field(default_factory=time)
    began: float = field(default_factory=perf_counter)
    headers: Headers = field(default_factory=Headers)
    caller: str | None = None
    identity: str | None = None
    admin: bool = False
    asked: str | None = None
    model: str | None = None
    ignored: tuple[str, ...] = ()
    watches: list[Watch] = field(default_factory=list)
    answers: list[Mapping[str, Any]] = field(default_factory=list)
    each: int = 1
    transcript: Transcript | None = None
    stopped: str | None = None
    waited: float = 0.0
    measured: Mapping[str, Any] = field(default_factory=dict)
    code: str | None = None
    error: str | None = None

    def failed(self, code: str | None, message: str) -> None:
        """Note that the request was refused or broke off."""
        self.code, self.error = code, message[:MOST_ERROR]

    def left_of(self, seconds: float) -> float:
        """What is left of the time that a request has from its arrival, at least a moment."""
        return max(seconds - self.waited, SHORTEST_S)

    def stop(self, notice: str) -> None:
        """End the request with the text it has; its answers say why with `notice`."""
        self.stopped = notice
        for watch in self.watches:
            watch.ticket.stop(notice)


class Book(Protocol):
    """What notes requests: for the console, or for another program."""

    def begin(self, entry: Entry) -> None:
        """A request has come."""
        ...

    def end(self, entry: Entry, status: int) -> None:
        """It is over; `status` as in the log. Called once for each `begin`."""
        ...


_current: ContextVar[Entry | None] = ContextVar("entry", default=None)


def current() -> Entry:
    """The entry of the current request; outside of requests one that is not logged."""
    return _current.get() or Entry("")


class RequestLog:
    """ASGI middleware around all others, so that it also sees what they refuse. `books` note requests."""

    def __init__(self, app: ASGIApp, books: Sequence[Book]) -> None:
        self._app = app
        self._books = books

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        route = scope["path"].rstrip("/")
        entry = Entry(_id_of(headers.get(ID)), scope["method"], _path_of(scope), route, headers=headers)
        _current.set(entry)
        for book in self._books:
            book.begin(entry)
        answer = _Answer(entry, send, anthropic=is_anthropic(scope["path"]))
        try:
            await self._app(scope, receive, answer.send)
        finally:
            for book in self._books:
                book.end(entry, answer.status)
            if logger.isEnabledFor(logging.INFO) and not _polled(scope, headers, answer.status):
                log({**_asked(scope, entry), **answer.facts()})


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
        text = escaped(super().format(record))
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


def log_to(handler: logging.Handler, log_format: str) -> None:
    """Log requests, changes of models and settings, and faults with this handler, in place of an earlier one;
    if `log_format` is "off", only warnings and faults.
    """
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    handler.setLevel(logging.WARNING if log_format == "off" else logging.INFO)
    for name, level in (
        ("foredraft.requests", logging.INFO),
        ("foredraft.server", logging.INFO),
        ("uvicorn", logging.WARNING),
    ):
        log = logging.getLogger(name)
        log.propagate = False
        log.setLevel(level)
        log.handlers = [handler]


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
    return by_itself or scope["path"].rstrip("/") in POLLED or scope["path"].startswith("/console/")


def _asked(scope: Scope, entry: Entry) -> dict[str, Any]:
    client = scope.get("client")
    return {"client": client[0] if client else None, "method": entry.method, "path": entry.path}


def _path_of(scope: Scope) -> str:
    path: str = scope.get("raw_path", scope["path"].encode()).decode("ascii", "backslashreplace")
    return path.translate(_CONTROL)[:MOST_PATH]


def _cut(names: Sequence[str]) -> list[str]:
    """Limit the number and length of names, and add how many were left out."""
    shown, more = [name[:MOST_NAME] for name in names[:MOST_NAMES]], len(names) - MOST_NAMES
    return [*shown, f"and {more} more"] if more > 0 else shown
