"""Server-sent events, and cancelling a stream when its client disconnects."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import aclosing
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import StreamingResponse

from foredraft.errors import ForedraftError
from foredraft.server.errors import ClientGoneError, of_error, unexpected

Result = TypeVar("Result")
DONE = "[DONE]"


_BREAKS = {ord(char): f"\\u{ord(char):04x}" for char in "\x85\u2028\u2029"}
"""Unicode line separators that many clients treat as line ends, unlike JSON and server-sent events. JSON
escapes the other ones (RFC 8259, 7); these can only be inside strings, so they are escaped everywhere.
"""


def sse(data: Any, event: str | None = None) -> str:
    """One event: JSON without line ends, or text unchanged."""
    if isinstance(data, str):
        text = data
    else:
        text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).translate(_BREAKS)
    head = f"event: {event}\n" if event else ""
    return f"{head}data: {text}\n\n"


def stream_response(events: AsyncIterator[str]) -> StreamingResponse:
    """A response that streams events and writes each piece at once: each write passes all layers of the
    application, makes a system call and wakes a client. An error becomes a last event, in OpenAI's form.
    """
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(_guarded(events), media_type="text/event-stream", headers=headers)


async def _guarded(events: AsyncIterator[str]) -> AsyncIterator[str]:
    try:
        async for text in events:
            if text:
                yield text
    except ForedraftError as error:
        yield sse(of_error(error))
    except Exception as error:  # noqa: BLE001 - the status line is already sent: report it in the stream
        yield sse(unexpected(error))


async def begun(request: Request, events: AsyncGenerator[Result, None]) -> AsyncGenerator[Result, None]:
    """The same events, after waiting for the first one: an error before it is an ordinary error response.

    Raises ClientGoneError, and what the first event raises.
    """
    return _chained(await unless_gone(request, anext(events)), events)


async def _chained(first: Result, events: AsyncGenerator[Result, None]) -> AsyncGenerator[Result, None]:
    async with aclosing(events):
        yield first
        async for event in events:
            yield event


async def unless_gone(request: Request, work: Awaitable[Result]) -> Result:
    """The result of `work`, which is cancelled if the client disconnects. Raises ClientGoneError."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGoneError
        return await task
    finally:
        watch.cancel()
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
