"""POST /v1/responses. A complete answer is a fold over the streamed events.

Nothing is stored: each request contains its whole conversation, and answers cannot be fetched later.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from foredraft.errors import ForedraftError, RequestError
from foredraft.server.caller import visit_of
from foredraft.server.errors import of_error, unexpected
from foredraft.server.generation import Choice, choices
from foredraft.server.jobs import make_job, with_defaults
from foredraft.server.openai.constraints import constraint_of
from foredraft.server.openai.response_events import Event, ResponseWriter
from foredraft.server.openai.response_schemas import ResponseRequest
from foredraft.server.openai.tool_use import ToolUse, tool_use
from foredraft.server.pool import Lease, ModelPool
from foredraft.server.rendering import json_response
from foredraft.server.sse import begun, sse, stream_response, unless_gone
from foredraft.server.strict_json import strict_router
from foredraft.server.worker import Job
from foredraft.types import Message


def responses_router(pool: ModelPool) -> APIRouter:
    """The route for the models of `pool`."""
    router = strict_router()

    @router.post("/v1/responses", response_model=None)
    async def responses(body: ResponseRequest, request: Request) -> Response:
        visit = visit_of(request)
        await visit.answers(1, body.priority)
        lease = await visit.lease(pool, body.model)
        preparing = lease.model.prepared(
            body.messages(), lambda messages: response_job(lease, body, messages, visit.caller.scope)
        )
        use, job = await unless_gone(request, preparing)
        writer = ResponseWriter(body, lease.name, job.params, use, lease.model.tokenizer)
        events = response_events(choices(lease.model, [job]), writer)
        if body.stream:
            return stream_response(_stream(await begun(request, events), writer))
        return await json_response(await unless_gone(request, fold_response(events)))

    return router


def response_job(
    lease: Lease, body: ResponseRequest, messages: Sequence[Message], scope: str
) -> tuple[ToolUse, Job]:
    """The tools that the answer may call, and the engine's request. Raises RequestError."""
    if body.top_logprobs and body.logprobs is None:
        raise RequestError('top_logprobs needs include to be ["message.output_text.logprobs"].')
    if body.stream_options is not None and not body.stream:
        raise RequestError("stream_options needs stream to be true.")
    parallel = body.parallel_tool_calls is not False
    offered = body.offered
    choice = offered.choice(body.tool_choice)
    served = lease.model
    use = tool_use(served.tokenizer, offered.functions, choice, parallel=parallel, flat=True)
    use.check_size(messages, served.info)
    use, prompt = use.encode(messages, body.wishes, served.vision)
    most_bytes = served.limits.max_schema_bytes
    constraint = constraint_of(body.format, None, None, use, most_bytes=most_bytes)
    params = replace(with_defaults(body.sampling(constraint), served, body), thinking=use.thinking)
    return use.under(constraint), make_job(
        lease, prompt, params, scope=scope, priority=body.priority, max_draft=body.max_draft
    )


async def response_events(
    answer: AsyncGenerator[Sequence[Choice], None], writer: ResponseWriter
) -> AsyncGenerator[Sequence[Event], None]:
    """OpenAI's events of the answer, in groups that are available at the same time. Errors of the engine
    before the first event are raised.
    """
    async with aclosing(answer):
        async for [(_, events)] in answer:
            yield list(writer.write(events))


async def _stream(
    answer: AsyncGenerator[Sequence[Event], None], writer: ResponseWriter
) -> AsyncGenerator[str, None]:
    """The events as server-sent events. An answer that breaks off ends with an error event."""
    async with aclosing(answer):
        try:
            async for events in answer:
                yield "".join(sse(event, event["type"]) for event in events)
        except Exception as error:  # noqa: BLE001 - the status line is already sent: report it in the stream
            body = of_error(error) if isinstance(error, ForedraftError) else unexpected(error)
            failed = writer.fail(getattr(error, "status", 500), body["error"]["message"])
            yield sse(failed, failed["type"])


async def fold_response(answer: AsyncGenerator[Sequence[Event], None]) -> dict[str, Any]:
    """The complete answer of a stream of events: the last event contains it."""
    last: Event = {}
    async with aclosing(answer):
        async for events in answer:
            last = events[-1] if events else last
    response: dict[str, Any] = last["response"]
    return response
