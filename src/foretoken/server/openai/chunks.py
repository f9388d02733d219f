"""What both of OpenAI's completion APIs do with their chunks: stream them, or fold them into one answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from foretoken.server.openai.schemas import SamplingBody
from foretoken.server.sse import DONE, begun, sse, stream_response, unless_gone

Chunk = dict[str, Any]
Fold = Callable[[Chunk | None, Chunk], Chunk]
"""A choice of the whole answer, so far (None: nothing yet), and the choice of a chunk: the choice then."""


async def respond(
    request: Request,
    body: SamplingBody,
    answer: AsyncGenerator[Sequence[Chunk], None],
    add: Fold,
    kind: str,
) -> Response:
    """The answer to a request, streamed or whole; a whole one is an object of this kind."""
    if body.stream:
        usage = body.stream_options is not None and body.stream_options.include_usage
        return stream_response(_events(await begun(request, answer), usage=usage))
    return JSONResponse(await unless_gone(request, _folded(answer, add, kind)))


async def _events(answer: AsyncGenerator[Sequence[Chunk], None], *, usage: bool) -> AsyncGenerator[str, None]:
    """The chunks as server-sent events. As OpenAI does it, a chunk without choices comes only to those who
    asked for usage; timings and speculation are in that one.
    """
    async with aclosing(answer):
        async for chunks in answer:
            yield "".join(sse(chunk) for chunk in chunks if chunk["choices"] or usage)
    yield sse(DONE)


async def _folded(answer: AsyncGenerator[Sequence[Chunk], None], add: Fold, kind: str) -> Chunk:
    """The whole answer that a stream of chunks describes."""
    answers: dict[int, Chunk] = {}
    last: Chunk = {}
    async with aclosing(answer):
        async for chunks in answer:
            for last in chunks:
                for choice in last["choices"]:
                    answers[choice["index"]] = add(answers.get(choice["index"]), choice)
    return {**last, "object": kind, "choices": [answers[index] for index in sorted(answers)]}
