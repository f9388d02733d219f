"""The front: checks requests, finds the model that they ask for, and lets one of its replicas answer."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from functools import partial
from time import time
from typing import Protocol, TypeAlias

from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from foredraft.errors import CapacityError, ForedraftError
from foredraft.scale.endings import broken_off
from foredraft.scale.message import Facts, Forwarded, Grow, Part, Parts
from foredraft.scale.metrics import FrontMetrics
from foredraft.scale.routing import beginnings_of
from foredraft.server.app import ROUTERS
from foredraft.server.auth import Caller
from foredraft.server.caller import Visit
from foredraft.server.errors import ClientGoneError
from foredraft.server.pool import ModelPool
from foredraft.server.rates import Growing
from foredraft.server.request_log import ID, current
from foredraft.server.sse import unless_gone
from foredraft.server.strict_json import LARGE, parse

TRIES = 3
"""How many replicas a request is sent to, if each is lost before the client got a byte."""

MOST_ACCEPTED = 2
"""How many of them may have accepted it: it may be the request that ends them."""

PAUSE_S = 0.2
"""Seconds before the second try; twice as many before the third."""

PLAIN = re.compile(rb"[^A-Za-z0-9._:-]")
"""What a request id in the log does not have (`request_log`)."""

Headers: TypeAlias = list[tuple[bytes, bytes]]

EVENTS = b"text/event-stream"


class ReplicaLostError(CapacityError):
    """The replica that was answering has ended."""

    code = "replica_lost"


class Replicas(Protocol):
    """The replicas of a model."""

    def ask(self, asked: Forwarded) -> AsyncGenerator[Parts, None]:
        """The reply of one of them (see `driving.answer`), which leaving the generator ends.

        Raises ReplicaLostError, and CapacityError if there is none to take the request.
        """
        ...

    async def read(self, path: str) -> Mapping[str, bytes]:
        """What each of them answers to GET, by its name; those that do not answer soon are left out."""
        ...


class Lost(Protocol):
    """Hears of each replica that ended before its answer was whole."""

    def __call__(self, *, again: bool) -> None:
        """`again`: another one is asked."""
        ...


class Forwarding:
    """ASGI middleware behind the gate: requests for a model go to its replicas, all others to `app`.

    `pool` has the settings, and loads nothing. `paths`: of requests for a model. `replicas`: by model.
    `metrics` counts those that end too early.
    """

    def __init__(
        self,
        app: ASGIApp,
        pool: ModelPool,
        paths: frozenset[str],
        replicas: Mapping[str, Replicas],
        metrics: FrontMetrics,
    ) -> None:
        self._app = app
        self._pool = pool
        self._paths = paths
        self._replicas = replicas
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in self._paths:
            await self._app(scope, receive, send)
            return
        body = await read(receive)
        if body is None:
            return
        visit: Visit = scope["state"]["visit"]
        name, beginnings = await looked_into(scope["path"], body, visit.caller.scope)
        entry = current()
        entry.asked = name
        entry.model = model = self._pool.answering(name)
        asked = forwarded(scope, body, visit.caller, beginnings)
        lost = partial(self._metrics.lost, model)
        ends = entry.at + self._pool.settings.limits.request_timeout_s
        relay = Relay(self._replicas[model], asked, visit.permit, send, lost=lost, ends=ends)
        try:
            await unless_gone(Request(scope, receive), relay.run())
        except ClientGoneError:
            return


def forwarded_paths(pool: ModelPool) -> frozenset[str]:
    """The paths of requests for a model: those of all APIs that take a body."""
    routes = [route for make_router in ROUTERS for route in make_router(pool).routes]
    return frozenset(
        it.path
        for it in routes
        if isinstance(it, Route) and "POST" in (it.methods or ()) and "{" not in it.path
    )


async def read(receive: Receive) -> bytes | None:
    """The body; None if the client left. Raises what the gate raises for one that is too large."""
    pieces: list[bytes] = []
    while (message := await receive())["type"] == "http.request":
        pieces.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(pieces)
    return None


async def looked_into(path: str, body: bytes, scope: str) -> tuple[str | None, tuple[int, ...]]:
    """The model that a body names, and the beginnings of its prompt. None also if the body cannot be read: a
    replica then says what is wrong with it.
    """

    def look() -> tuple[str | None, tuple[int, ...]]:
        return _model_in(body), beginnings_of(path, body, scope)

    return await asyncio.to_thread(look) if len(body) >= LARGE else look()


def _model_in(body: bytes) -> str | None:
    try:
        given = parse(body)
    except (ForedraftError, ValueError, RecursionError):
        return None
    name = given.get("model") if isinstance(given, dict) else None
    return name if isinstance(name, str) else None


def with_plain_id(headers: Headers) -> Headers:
    """The headers with a request id that the log takes as it is. Ray's proxy answers with any: of another one
    the log has the same but for some characters.
    """
    own = ID.encode()
    return [(name, PLAIN.sub(b"_", it)[:128] or b"_") if name == own else (name, it) for name, it in headers]


def forwarded(scope: Scope, body: bytes, caller: Caller, beginnings: tuple[int, ...]) -> Forwarded:
    """The request for a replica, under the id that it has in the front's log, and without its key."""
    own = (ID.encode(), b"authorization", b"x-api-key", b"content-length", b"transfer-encoding")
    headers = [pair for pair in scope["headers"] if pair[0] not in own]
    headers += [(ID.encode(), current().id.encode()), (b"content-length", str(len(body)).encode())]
    return Forwarded(
        method=scope["method"],
        path=scope["path"],
        query=scope["query_string"],
        headers=tuple(headers),
        body=body,
        caller=caller,
        beginnings=beginnings,
        at=current().at,
    )


class Relay:
    """Sends the reply of a replica to the client.

    The head of the answer waits for the first byte of its body: until then another replica can answer
    instead; once, if the first had accepted it, since the request may be what has ended that one. A seed is
    not needed for that, since the client has seen nothing of the first answer; with one the text is the same.
    `lost` is called for each replica that ended too early, with `again` if another one is asked. `ends`: Unix
    time when the request is given up if no replica has accepted it.
    """

    def __init__(
        self, replicas: Replicas, asked: Forwarded, permit: Growing, send: Send, *, lost: Lost, ends: float
    ) -> None:
        self._replicas = replicas
        self._lost = lost
        self._ends = ends
        self._asked = asked
        self._permit = permit
        self._send = send
        self._grown = 0
        self._head: Message | None = None
        self._begun = False
        self._whole = False
        self._last = b""
        self._accepted = 0
        """How many replicas had the request."""

    async def run(self) -> None:
        """Until the answer is complete, or has ended with an error event. Raises CapacityError before it has
        begun, and ReplicaLostError where there is no way to say that it broke off.
        """
        for number in range(1, TRIES + 1):
            try:
                await self._once()
                return
            except ReplicaLostError as error:
                if self._whole:
                    return
                again = not self._begun and number < TRIES and self._accepted < MOST_ACCEPTED
                self._lost(again=again)
                if self._begun:
                    await self._break_off(error)
                    return
                if not again:
                    raise
            await asyncio.sleep(PAUSE_S * number)

    async def _once(self) -> None:
        """Relay one reply. Raises ReplicaLostError if it is cut off, and what `Replicas.ask` raises."""
        self._head, wanted, accepted = None, 0, False
        late = asyncio.timeout(max(0.0, self._ends - time()))
        try:
            async with late, aclosing(self._replicas.ask(self._asked)) as reply:
                async for parts in reply:
                    if not accepted:
                        accepted, self._accepted = True, self._accepted + 1
                        late.reschedule(None)  # the replica sees to the rest of the time
                    for part in parts:
                        wanted = await self._take(part, wanted)
        except TimeoutError as error:
            if not late.expired():
                raise
            raise too_late() from error
        if not self._whole:
            raise lost()

    async def _take(self, part: Part, wanted: int) -> int:
        """Pass a part on. Returns how many further answers the request has `wanted` so far."""
        if isinstance(part, Grow):
            wanted += part.more
            await self._grow(wanted)
        elif isinstance(part, Facts):
            self._note(part)
        else:
            await self._pass(part)
        return wanted

    async def _grow(self, wanted: int) -> None:
        """Count the request's answers once, also if it is sent again. Raises RateLimitError."""
        if wanted > self._grown:
            await self._permit.grow(wanted - self._grown)
            self._grown = wanted

    async def _pass(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._head = message
            return
        body, more = message.get("body", b""), message.get("more_body", False)
        if not self._begun and self._head is not None and (body or not more):
            self._begun = True
            await self._send(self._head)
        self._last = body or self._last
        await self._send(message)
        self._whole = not more

    def _note(self, facts: Facts) -> None:
        entry = current()
        entry.model, entry.each = facts.model or entry.model, facts.each
        entry.ignored, entry.measured = facts.ignored, facts.measured
        entry.answers = list(facts.answers)
        if facts.error is not None:
            entry.failed(facts.code, facts.error)

    async def _break_off(self, error: ReplicaLostError) -> None:
        """Raises the error if what was sent is not a stream of events."""
        headers = dict(self._head["headers"]) if self._head else {}
        if not headers.get(b"content-type", b"").startswith(EVENTS):
            raise error
        event = broken_off(error, self._asked.path, self._last)
        await self._send({"type": "http.response.body", "body": event, "more_body": False})


def too_late() -> CapacityError:
    """The error for a request whose time is over before a replica has accepted it."""
    return CapacityError(
        "The request's deadline passed while it was waiting for a replica.", hint="Try again later."
    )


def lost() -> ReplicaLostError:
    """The error for a replica that has ended."""
    return ReplicaLostError(
        "The replica that was answering has ended.", hint="Send the request again: the others go on."
    )
