"""Runs an ASGI application for a request that came as a message, and returns its answer in parts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextvars import ContextVar, copy_context
from time import time
from typing import Any

from starlette.types import ASGIApp, Message

from foredraft.scale.message import Facts, Forwarded, Grow, Part, Parts
from foredraft.server.request_log import Entry
from foredraft.server.telemetry import answer_attributes

LEAVING_S = 10.0
"""Seconds that the application has to end a request whose client is gone, before it is cancelled."""


async def answer(
    app: ASGIApp, asked: Forwarded, gone: asyncio.Event | None = None
) -> AsyncGenerator[Parts, None]:
    """The reply of `app`, which has the log's book `Notes`: `Facts` come last. Leaving the generator before
    ends the request, as a client does that disconnects, and so does the event `gone`. Raises what `app`
    raises.
    """
    exchange = _Exchange(asked, gone or asyncio.Event())
    context = copy_context()
    context.run(_current.set, exchange)
    running = asyncio.create_task(_run(app, exchange), context=context)
    try:
        yield ()
        while parts := await exchange.take():
            yield parts
        await running
        yield (exchange.facts(),)
    finally:
        exchange.gone.set()
        if not running.done():
            await asyncio.wait([running], timeout=LEAVING_S)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def _run(app: ASGIApp, exchange: _Exchange) -> None:
    try:
        await app(exchange.scope, exchange.receive, exchange.send)
    finally:
        exchange.end()


class Notes:
    """The book (`request_log.Book`) of an application that `answer` runs."""

    def begin(self, entry: Entry) -> None:
        """A request has come."""
        if (exchange := _current.get()) is not None:
            exchange.entry = entry
            entry.waited = exchange.waited

    def end(self, entry: Entry, status: int) -> None:
        """It is over: `answer` reads what was noted."""


class _Exchange:
    """One request: what the application receives, and what it has sent. Its permit (`rates.Growing`)."""

    def __init__(self, asked: Forwarded, gone: asyncio.Event) -> None:
        self.scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "scheme": "http",
            "method": asked.method,
            "path": asked.path,
            "raw_path": asked.path.encode(),
            "root_path": "",
            "query_string": asked.query,
            "headers": list(asked.headers),
            "client": None,
            "server": None,
            "state": {"caller": asked.caller, "permit": self},
        }
        self.entry = Entry("")
        self.waited = waited(asked.at, time())
        self.gone = gone
        self._body: bytes | None = asked.body
        self._sent: list[Part] = []
        self._changed = asyncio.Event()
        self._ended = False

    async def receive(self) -> Message:
        """The body at once, then the client's leaving, once that happens."""
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Take a message of the answer."""
        self._add(message)

    async def grow(self, more: int) -> None:
        """Tell the front, which has the limits and ends the request where they are exceeded."""
        if more:
            self._add(Grow(more))

    def end(self) -> None:
        """Nothing more comes."""
        self._ended = True
        self._changed.set()

    async def take(self) -> Parts:
        """What has come, once there is something; nothing at the end."""
        await self._changed.wait()
        parts, self._sent = tuple(self._sent), []
        if not self._ended:
            self._changed.clear()
        return parts

    def facts(self) -> Facts:
        """What was noted of the request."""
        entry = self.entry
        return Facts(
            entry.model,
            entry.ignored,
            tuple(entry.answers),
            entry.each,
            entry.code,
            entry.error,
            answer_attributes(entry.watches, entry.each),
        )

    def _add(self, part: Part) -> None:
        self._sent.append(part)
        self._changed.set()


def waited(at: float | None, now: float) -> float:
    """Seconds since the front got a request, by the clocks of both machines; if these differ so that it has
    not come yet, 0.
    """
    return 0.0 if at is None else max(0.0, now - at)


_current: ContextVar[_Exchange | None] = ContextVar("exchange", default=None)
