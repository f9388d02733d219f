"""GET /console/events: what the page shows, as it changes, in one stream of server-sent events."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic, time_ns
from typing import Annotated, Any, Generic, TypeVar

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response, StreamingResponse

from foredraft.errors import AuthenticationError, ForedraftError, RateLimitError, RequestError
from foredraft.server.auth import Authenticator, Caller
from foredraft.server.caller import visit_of
from foredraft.server.connection import stopping
from foredraft.server.console.access import as_reached, reader_of
from foredraft.server.console.shapes import Reply, numbered
from foredraft.server.errors import of_error, unexpected
from foredraft.server.gate import is_head
from foredraft.server.pool import ModelPool
from foredraft.server.settings import ServerSettings
from foredraft.server.sse import sse, stream_response
from foredraft.server.strict_json import strict_router

QUIET_S = 15.0
"""Seconds without an event after which a comment is sent: proxies end connections that say nothing."""

MOST_STREAMS = 32
"""Streams of one caller at the same time."""

MOST_STREAMS_IN_ALL = 128

KEPT_FREE = 16
"""Streams of all that only the admin can open: other keys do not shut the admin out."""

KEY_LOOK_S = 1.0
"""Seconds between looks at whether the settings, and with them the caller's key, have changed."""

RETRY_S = 5.0
"""Seconds after which a refused caller may try again."""

COMMENT = ": \n\n"

Found = TypeVar("Found", bound=Reply)

Read = Callable[[Caller, Reply | None], Awaitable[Reply | None]]


@dataclass(frozen=True, slots=True)
class Topic:
    """What can be followed under a name: `read(caller, sent)` is called every `every_s` seconds.

    `sent` is what the stream was sent last of this topic, None at first. Nothing is sent for None and for
    what equals `sent`. A ForedraftError is sent as an event `error`, once until it
    changes, and the topic goes on.
    """

    name: str
    every_s: float
    read: Read


class Shared(Generic[Found]):
    """What is the same for every caller and costs something to read; streams share what was read less than
    `fresh_s` seconds ago. Readings follow one another, so that the last one is the newest.
    """

    def __init__(self, read: Callable[[], Awaitable[Found]], fresh_s: float) -> None:
        self._read, self._fresh_s = read, fresh_s
        self._reading = asyncio.Lock()
        self._began = 0.0
        self._found: Found | None = None
        self._known: Found | None = None
        self._revision = time_ns() // 1_000_000  # a server that is started again goes on above

    async def now(self) -> Found:
        """Read it, or share a reading that has begun since this was called."""
        return await self._since(monotonic())

    async def recent(self, _caller: Caller, _sent: Reply | None) -> Found:
        """The `read` of a topic."""
        return await self._since(monotonic() - self._fresh_s)

    async def _since(self, moment: float) -> Found:
        async with self._reading:
            if self._known is None or self._began < moment:
                began = monotonic()
                found = await self._read()
                if self._known is None or found != self._found:
                    self._revision += 1
                    self._found, self._known = found, numbered(found, self._revision)
                self._began = began
            return self._known


def events_router(pool: ModelPool, known: Mapping[str, Topic]) -> APIRouter:
    """The route for the topics that are known, by their names."""
    router, streams = strict_router(), Counter[str]()
    valid = ", ".join(sorted(known))

    @router.get(
        "/console/events",
        description=f"Server-sent events. `topics`: names, separated by commas, of {valid}.",
        response_class=StreamingResponse,
        responses={
            200: {
                "description": "Events named after their topics, whose data is what the topic's own path "
                "answers. After its first event `overview` has only new points, `log` only new lines, "
                "`benchmarks` only those that changed, `requests` only what runs and what has ended since "
                "(`whole` is false then). `error` with `topic` and `error` where a topic cannot be read.",
                "content": {"text/event-stream": {"schema": {"type": "string"}}},
            }
        },
        response_model=None,
    )
    async def events(
        request: Request,
        caller: Annotated[Caller, Depends(reader_of)],
        topics: str,
    ) -> Response:
        followed = [_topic(known, name, valid) for name in dict.fromkeys(topics.split(","))]
        if is_head(request.scope):
            return Response(media_type="text/event-stream")
        visit_of(request).held.enter_context(_counted(streams, caller))
        return stream_response(_Stream(request, pool, caller).events(followed))

    return router


def _topic(known: Mapping[str, Topic], name: str, valid: str) -> Topic:
    if name not in known:
        raise RequestError(f"topics: there is no topic {name[:80]!r}.", hint=f"Topics: {valid}.")
    return known[name]


@contextmanager
def _counted(streams: Counter[str], caller: Caller) -> Iterator[None]:
    """Count a stream while it is open. Raises RateLimitError where there are too many."""
    name, in_all = caller.name, MOST_STREAMS_IN_ALL - (0 if caller.admin else KEPT_FREE)
    if streams[name] >= MOST_STREAMS or streams.total() >= in_all:
        raise RateLimitError(
            f"{streams[name]} streams of events are open with this key, {streams.total()} in all.",
            retry_after=RETRY_S,
            hint=f"Close some: a key may have {MOST_STREAMS} open, all together {in_all}.",
        )
    streams[name] += 1
    try:
        yield
    finally:
        streams[name] -= 1


@dataclass(slots=True)
class _Stream:
    """One open stream. Its tasks put what is to be sent into `ready`, None at the end; they wait while the
    client does not read.
    """

    request: Request
    pool: ModelPool
    caller: Caller
    ready: asyncio.Queue[str | None] = field(default_factory=lambda: asyncio.Queue(1))

    async def events(self, topics: list[Topic]) -> AsyncGenerator[str, None]:
        """The text of the stream. Closing it ends its tasks."""
        work = [self._follow(topic) for topic in topics]
        tasks = [asyncio.create_task(each) for each in (*work, self._watch_key(), self._watch_server())]
        try:
            while True:
                try:
                    async with asyncio.timeout(QUIET_S):
                        text = await self.ready.get()
                except TimeoutError:
                    text = COMMENT
                if text is None:
                    return
                yield text
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, topic: Topic) -> None:
        sent: Reply | None = None
        complaint: dict[str, Any] | None = None
        while True:
            began = monotonic()
            try:
                found = await topic.read(self.caller, sent)
            except ForedraftError as error:
                if of_error(error) != complaint:
                    complaint = of_error(error)
                    await self.ready.put(sse({"topic": topic.name, **complaint}, "error"))
            except Exception as error:  # noqa: BLE001 - the status line is already sent
                await self._end({"topic": topic.name, **unexpected(error)})
                return
            else:
                complaint = None
                if found is not None and found != sent:
                    sent = found
                    await self.ready.put(sse(found.model_dump(mode="json", by_alias=True), topic.name))
            await asyncio.sleep(max(topic.every_s - (monotonic() - began), 0.01))

    async def _watch_key(self) -> None:
        """End the stream when the caller's key is no longer valid; its limits and rights may change, too."""
        settings = self.pool.settings
        while True:
            await asyncio.sleep(KEY_LOOK_S)
            if self.pool.settings is settings:
                continue
            settings = self.pool.settings
            try:
                self.caller = _caller_now(settings, self.request)
            except AuthenticationError as error:
                await self._end(of_error(error))
                return

    async def _watch_server(self) -> None:
        await stopping(self.request.scope).wait()
        await self.ready.put(None)

    async def _end(self, error: Mapping[str, Any]) -> None:
        await self.ready.put(sse(error, "error"))
        await self.ready.put(None)


def _caller_now(settings: ServerSettings, request: Request) -> Caller:
    """Who the stream's caller is with new settings. Raises AuthenticationError."""
    known = Authenticator(settings.keys, settings.admin_key_hash)
    caller = known.check(request.headers.get("authorization"), request.headers.get("x-api-key"))
    return as_reached(request, caller)
