"""Checks of every request before it reaches an API: host, key, rate, and size of the body.

Plain ASGI, so that a caller's slot is released after the last byte of a stream, and a body that is too large
is refused before it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from foredraft.errors import ForedraftError, RequestError
from foredraft.server.auth import Authenticator, Caller, check_host_header
from foredraft.server.caller import Visit
from foredraft.server.errors import error_response, respond, unexpected
from foredraft.server.page.built import FILES
from foredraft.server.page.docs import ASSETS
from foredraft.server.rates import Admit, Permission, RateLimiter
from foredraft.server.request_log import current
from foredraft.server.settings import ServerSettings

OPEN = ("/health", *FILES, "/openapi.json", "/docs", *(f"/docs/{name}" for name in ASSETS))
"""Paths that need no key: load balancers have none, and the pages ask for one. The API document is the same
for every server of this version except for the limits, and does not mention models or keys.
"""

_HEAD = "foredraft.head"

CONSOLE_PER_MINUTE = 600
"""Requests to the console that a key with limits may make in a minute. They count in none of its own limits:
an open page asks often, and must neither use them up nor be shut out by them.
"""

JSON_ONLY = ("POST", "PUT", "PATCH", "DELETE")


class BodyTooLargeError(RequestError):
    """The body exceeds the size limit."""

    code = "body_too_large"
    status = 413


class ContentTypeError(RequestError):
    """A body that is not JSON. A web page can send text or an empty body anywhere without permission, but not
    JSON.
    """

    code = "unsupported_media_type"
    status = 415


class ContentEncodingError(ContentTypeError):
    """A compressed body: a few kilobytes could expand to gigabytes."""


PLAIN = "identity"
"""The content coding of an uncompressed body."""

FROM_PAGE = ("origin", "sec-fetch-mode")
"""Headers that browsers always send, and a page cannot suppress."""


class Gate:
    """ASGI middleware. `current` returns the settings, which may change between requests. `admit`: who counts
    the requests of each caller; None: this gate. Requests to the console it always counts itself.
    """

    def __init__(
        self,
        app: ASGIApp,
        current: Callable[[], ServerSettings],
        *,
        allow_public: bool = False,
        admit: Admit | None = None,
    ) -> None:
        self._app = app
        self._limiter, self._console = RateLimiter(), RateLimiter()
        self._counted = admit
        self._allow_public = allow_public
        self._current = current
        self._use(current())

    def _use(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._authenticator = Authenticator(settings.keys, settings.admin_key_hash)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        await answering_errors(self._pass, plain(scope), receive, send)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers, settings = Headers(scope=scope), self._current()
        if settings is not self._settings:
            self._use(settings)
        check_host_header(headers.get("host"), settings.host, settings.keys, allow_public=self._allow_public)
        if scope["path"] in OPEN:
            await self._app(scope, receive, send)
            return
        caller = self._authenticator.check(headers.get("authorization"), headers.get("x-api-key"))
        note(caller)
        body = _Bounded(receive, send, settings.limits.max_body_bytes)
        if scope["method"] in JSON_ONLY:
            _check_type(headers, empty=scope["method"] == "DELETE")
            body.check(headers)
        with await self._admit(caller, scope["path"]) as permit, ExitStack() as held:
            scope.setdefault("state", {})["visit"] = Visit(caller, permit, held)
            await self._app(scope, body.receive, body.send)
        if body.refused:
            raise body.too_large()

    async def _admit(self, caller: Caller, path: str) -> Permission:
        """Raises RateLimitError."""
        if not path.startswith("/console/"):
            return self._limiter.admit(caller) if self._counted is None else await self._counted(caller)
        limited = caller.requests_per_minute is not None or caller.max_concurrent is not None
        per_minute = max(CONSOLE_PER_MINUTE, caller.requests_per_minute or 0) if limited else None
        return self._console.admit(replace(caller, requests_per_minute=per_minute, max_concurrent=None))


class Admitted:
    """ASGI middleware in place of the gate, for requests that a gate in another process has let in: their
    caller and permit are in the scope's state.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        await answering_errors(self._pass, scope, receive, send)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = scope["state"]
        note(state["caller"])
        with ExitStack() as held:
            state["visit"] = Visit(state["caller"], state["permit"], held)
            await self._app(scope, receive, send)


def note(caller: Caller) -> None:
    """Write into the request's log who sends it."""
    entry = current()
    entry.caller, entry.identity, entry.admin = caller.name, caller.identity, caller.admin


async def answering_errors(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Call `app` for an HTTP request, and answer the errors that it raises before its answer begins."""
    begun = False

    async def sending(message: Message) -> None:
        nonlocal begun
        begun = True
        await send(message)

    try:
        await app(scope, receive, sending)
    except ForedraftError as error:
        await error_response(error, scope["path"])(scope, receive, send)
    except Exception as error:
        if begun:
            raise
        await respond(scope["path"], unexpected(error), 500)(scope, receive, send)


def plain(scope: Scope) -> Scope:
    """The request with a trailing slash removed and HEAD treated as GET; uvicorn then sends no body."""
    path = scope["path"].rstrip("/") or "/"
    if scope["method"] == "HEAD":
        return {**scope, "method": "GET", "path": path, _HEAD: True}
    return {**scope, "path": path}


def is_head(scope: Scope) -> bool:
    """Whether a request that is treated as GET is HEAD: an endless answer would be nothing but endless."""
    return _HEAD in scope


def _check_type(headers: Headers, *, empty: bool) -> None:
    """Check the body's type, which a web page's request needs even if the body is empty, unless it may be
    `empty`: a page needs permission for the method itself. Raises ContentTypeError, ContentEncodingError.
    """
    coding = headers.get("content-encoding", PLAIN).strip().lower()
    if coding != PLAIN:
        raise ContentEncodingError(
            f"The body is compressed with {coding[:100]!r}.", hint="Send it uncompressed."
        )
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    has_body = "transfer-encoding" in headers or int(headers.get("content-length") or 0)
    if kind != "application/json" and (
        has_body or (not empty and any(name in headers for name in FROM_PAGE))
    ):
        raise ContentTypeError(
            f"The body has the content type {kind or 'nothing'!r}.",
            hint="Send JSON with 'Content-Type: application/json'.",
        )


class _Bounded:
    """A connection whose body is limited to `limit` bytes. Beyond it, `refused` is set, and the application's
    own answer to the truncated body is held back.
    """

    def __init__(self, receive: Receive, send: Send, limit: int) -> None:
        self._receive = receive
        self._send = send
        self._limit = limit
        self._seen = 0
        self.refused = False

    def check(self, headers: Mapping[str, str]) -> None:
        """Raises BodyTooLargeError if the headers announce a larger body."""
        length = headers.get("content-length", "")
        if length.isdigit() and int(length) > self._limit:
            raise self.too_large()

    async def receive(self) -> Message:
        message = await self._receive()
        self._seen += len(message.get("body", b""))
        if self._seen > self._limit:
            self.refused = True
            raise self.too_large()
        return message

    async def send(self, message: Message) -> None:
        if not self.refused:
            await self._send(message)

    def too_large(self) -> BodyTooLargeError:
        return BodyTooLargeError(f"The body is larger than {self._limit} bytes.")
