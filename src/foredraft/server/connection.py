"""uvicorn's connection, with time limits and a limit on pipelined requests.

uvicorn waits without limit for the head or body of a request, keeps a head of any length in memory, and does
not stop while a client is slow to read an answer. None of this needs an API key.

With pipelined requests (sent before the previous answer) it loses track of the running one, which continues
for a client that has left, and a stopping server still starts the waiting ones. It also accepts any number of
them: four clients that only sent requests delayed all others by 39 seconds.

It also drops the body of a request that offers another protocol, as Java's HttpClient does with every first
request (`Upgrade: h2c`). The offer may be ignored (RFC 9110, 7.8), and is ignored here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass
from time import monotonic
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from foredraft.server.request_log import refused

MOST_HEAD = 64 * 1024
"""Maximum bytes of request line and headers, as in most servers; also of trailers and chunk extensions
between two pieces of a chunked body, which the parser keeps.
"""

_PIECE = 8192
"""Bytes that are parsed at once; a head may exceed `MOST_HEAD` by that much."""

MOST_WAITING = 16
"""Maximum unanswered requests of a connection, including the running one. A client that sends more gets the
answers to these, and has to send the rest on another connection (RFC 9112, 9.3.2).
"""

STOPPING_S = 5.0
"""Total seconds for each part of `Patience` while the server stops."""

STOPPING_LOOK_S = 0.1
"""Seconds between checks of the connections while the server stops."""

_OFFER = (b"upgrade", b"http2-settings")
"""Headers that offer another protocol, and their names in the header `connection`."""


_STOPPING = "foredraft.stopping"
"""The key of the event in the scope of a request that `stopping` returns."""


def stopping(scope: MutableMapping[str, Any]) -> asyncio.Event:
    """Set when the server begins to stop: an answer without an end of its own has to end then, because the
    server waits for it. Never set where the request came over another connection than `Connection`.
    """
    event: asyncio.Event = scope.get(_STOPPING) or asyncio.Event()
    return event


class _TooManyError(Exception):
    """Ends the parsing at the first request beyond the limit."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Time limits for a client, in seconds: for a request's head, between two pieces of its body, and between
    two reads of an answer. The system buffers megabytes of an answer and only then asks for more.

    From the time `since` on (as from `time.monotonic`) they limit the whole head, the whole body, and the
    whole remaining answer instead.
    """

    head_s: float = 30.0
    body_s: float = 60.0
    answer_s: float = 120.0
    since: float | None = None


class Connection(HttpToolsProtocol):
    """uvicorn's protocol with the limits described above. `check` has to be called regularly."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._head = 0
        self._in_head = True
        self._offered = False
        self._reading_stopped = False  # reading has stopped: too many requests are waiting
        self._heard = self._head_began = self._read = self._behind = self._busy = monotonic()
        self._unread = 0
        self._cycles: list[RequestResponseCycle] = []  # the running one, and those waiting for it
        self._stopping = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        """Parse bytes of requests, in pieces: a head's size counts from the piece after its first."""
        self._heard = monotonic()
        self._unset_keepalive_if_required()
        for start in range(0, len(data), _PIECE):
            if self._reading_stopped or self.transport.is_closing():
                return
            self._parse(data[start : start + _PIECE])

    def _parse(self, data: bytes) -> None:
        self._head += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._offered:
                self._without_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, _TooManyError):
                self._stop_reading()
            else:
                refused(400, self.client)
                self.send_400_response("Invalid HTTP request received.")
        else:
            if self._head > MOST_HEAD:
                self._refuse(b"431 Request Header Fields Too Large")

    def _stop_reading(self) -> None:
        """Stop reading: answer the waiting requests, then close."""
        self._reading_stopped = True
        self.flow.pause_reading()
        self._unanswered()[-1].keep_alive = False

    def _without_upgrade(self, body: bytes) -> None:
        """Parse the request's head again, without its offer of another protocol."""
        version = self.parser.get_http_version().encode()
        head = [self.parser.get_method() + b" " + self.url + b" HTTP/" + version]
        for name, value in self.headers:
            if name == b"connection":
                words = [word.strip() for word in value.split(b",")]
                kept = b", ".join(word for word in words if word.lower() not in _OFFER)
                head.append(b"connection: " + kept)
            elif name not in _OFFER:
                head.append(name + b": " + value)
        self.parser = httptools.HttpRequestParser(self)
        self.data_received(b"\r\n".join([*head, b"", body]))

    def on_message_begin(self) -> None:
        """Parser callback: a request begins."""
        if len(self._unanswered()) >= MOST_WAITING:
            raise _TooManyError
        super().on_message_begin()
        self.scope[_STOPPING] = self._stopping  # type: ignore[literal-required]
        self._in_head, self._head, self._head_began = True, 0, monotonic()

    def on_headers_complete(self) -> None:
        """Parser callback: the head is complete."""
        self._in_head, self._head, self._busy = False, 0, monotonic()
        self._offered = self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"
        if not self._offered:
            super().on_headers_complete()
            self._cycles = [*self._unanswered(), self.cycle]

    def on_body(self, body: bytes) -> None:
        """Parser callback: a piece of the body."""
        self._head = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Parser callback: the body is complete. After an offer of another protocol the parser reads none."""
        if not self._offered:
            super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """End all requests of a client that has disconnected."""
        for cycle in self._unanswered():
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Stop the server's part: the running request is finished, waiting ones are not started."""
        self.pipeline.clear()
        self._stopping.set()
        self._cycles = self._unanswered()[:1]
        for cycle in self._cycles:
            cycle.keep_alive = False
        if not self._cycles:
            self.transport.close()

    def _unanswered(self) -> list[RequestResponseCycle]:
        return [cycle for cycle in self._cycles if not cycle.response_complete]

    def check(self, now: float, patience: Patience) -> None:
        """Close the connection if its client is too slow. `now` is a time of `time.monotonic`."""
        unread = self.transport.get_write_buffer_size()
        if not unread:
            self._behind = now
        if not unread or unread != self._unread:
            self._unread, self._read = unread, now
        since, cycles = patience.since, self._unanswered()
        if unread:
            if now - (self._read if since is None else max(since, self._behind)) > patience.answer_s:
                self.transport.abort()  # `close` would wait for the client to read
        elif cycles:
            self._busy = now
            heard = self._heard if since is None else since
            if cycles[-1].more_body and not self.flow.read_paused and now - heard > patience.body_s:
                self._refuse(b"408 Request Timeout")
        elif self._in_head and now - max(self._head_began, since or 0.0) > patience.head_s:
            self._refuse(b"408 Request Timeout")
        elif self.timeout_keep_alive_task is None and now - self._busy > patience.body_s:
            self.transport.close()  # more data after the answer stopped uvicorn's own timeout

    def _refuse(self, status: bytes) -> None:
        if not any(cycle.response_started for cycle in self._unanswered()):
            refused(int(status[:3]), self.client)
            self.transport.write(
                b"HTTP/1.1 " + status + b"\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
            )
        self.transport.close()


async def watch(connections: Iterable[Any], patience: Patience, every_s: float = 1.0) -> None:
    """Check all connections, forever."""
    while True:
        await asyncio.sleep(every_s)
        now = monotonic()
        for connection in list(connections):
            connection.check(now, patience)
