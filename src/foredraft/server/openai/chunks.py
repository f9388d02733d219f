"""Chunks of both of OpenAI's completion APIs: streaming them, or folding them into one answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Any, Protocol

from fastapi import Request
from fastapi.responses import Response

from foredraft.server import report
from foredraft.server.generation import Choice
from foredraft.server.openai.schemas import SamplingBody
from foredraft.server.rendering import json_response
from foredraft.server.sse import DONE, begun, sse, stream_response, unless_gone
from foredraft.server.usage import openai_usage
from foredraft.types import Event, FinishEvent

Chunk = dict[str, Any]
Fold = Callable[[Chunk | None, Chunk], Chunk]
"""Adds a chunk's choice to the answer's choice so far (None: nothing yet) and returns the result."""


class Writer(Protocol):
    """Turns one answer's events into choices of chunks."""

    def write(self, events: Sequence[Event]) -> Iterable[Chunk]:
        """The choices for these events."""
        ...


async def chunks_of(
    answers: AsyncGenerator[Sequence[Choice], None], head: Chunk, writers: Sequence[Writer], n: int
) -> AsyncGenerator[Sequence[Chunk], None]:
    """The chunks of all answers, `n` to each prompt, in groups that are available at the same time. Each
    starts with `head`; the last has no choices, but the usage and the speculation statistics.
    """
    ends: dict[int, FinishEvent] = {}
    async with aclosing(answers):
        async for came in answers:
            chunks: list[Chunk] = []
            for index, events in came:
                chunks += ({**head, "choices": [choice]} for choice in writers[index].write(events))
                if isinstance(events[-1], FinishEvent):
                    ends[index] = events[-1]
            yield chunks
    finished = [ends[index] for index in sorted(ends)]
    usage = openai_usage([end.usage for end in finished], n)
    yield [{**head, "choices": [], "usage": usage, **report.extras(finished)}]


async def respond(
    request: Request,
    body: SamplingBody,
    answer: AsyncGenerator[Sequence[Chunk], None],
    add: Fold,
    kind: str,
) -> Response:
    """The response to a request, streamed or complete; a complete one is an object of type `kind`."""
    if body.stream:
        usage = body.stream_options is not None and body.stream_options.include_usage
        return stream_response(_events(await begun(request, answer), usage=usage))
    return await json_response(await unless_gone(request, _folded(answer, add, kind)))


async def _events(answer: AsyncGenerator[Sequence[Chunk], None], *, usage: bool) -> AsyncGenerator[str, None]:
    """The chunks as server-sent events. As in OpenAI's API, the chunk without choices is only sent if usage
    was requested, and usage is null in the chunks before it; that chunk also has timings and speculation.
    """
    before: Chunk = {"usage": None} if usage else {}
    async with aclosing(answer):
        async for chunks in answer:
            yield "".join(sse({**before, **chunk}) for chunk in chunks if chunk["choices"] or usage)
    yield sse(DONE)


async def _folded(answer: AsyncGenerator[Sequence[Chunk], None], add: Fold, kind: str) -> Chunk:
    """Fold a stream of chunks into the complete answer."""
    answers: dict[int, Chunk] = {}
    last: Chunk = {}
    async with aclosing(answer):
        async for chunks in answer:
            for last in chunks:
                for choice in last["choices"]:
                    answers[choice["index"]] = add(answers.get(choice["index"]), choice)
    return {**last, "object": kind, "choices": [answers[index] for index in sorted(answers)]}
