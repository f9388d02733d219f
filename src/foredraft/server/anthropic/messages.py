"""POST /v1/messages and /v1/messages/count_tokens. A complete answer is a fold over the streamed events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing

from fastapi import APIRouter, Request
from fastapi.responses import Response

from foredraft.errors import ForedraftError
from foredraft.server.anthropic.errors import PATH, anthropic_error
from foredraft.server.anthropic.events import Event, fold_message, message_events
from foredraft.server.anthropic.output import message_constraint
from foredraft.server.anthropic.prompt import encode_messages, is_begun
from foredraft.server.anthropic.schemas import CountTokensRequest, MessagesRequest
from foredraft.server.anthropic.tools import message_tools
from foredraft.server.caller import visit_of
from foredraft.server.errors import of_error, unexpected
from foredraft.server.jobs import make_job, with_defaults
from foredraft.server.openai.tool_use import ToolUse
from foredraft.server.pool import ModelPool, Served
from foredraft.server.rendering import json_response
from foredraft.server.sse import begun, sse, stream_response, unless_gone
from foredraft.server.strict_json import strict_router
from foredraft.server.worker import Job


def messages_router(pool: ModelPool) -> APIRouter:
    """The routes for the models of `pool`."""
    router = strict_router()

    @router.post(PATH, response_model=None)
    async def messages(body: MessagesRequest, request: Request) -> Response:
        visit = visit_of(request)
        served = await visit.lease(pool, body.model)
        use, job = await served.prepare(lambda: message_job(served, body, visit.caller.scope))
        events = message_events(served, job, use)
        if not body.stream:
            return await json_response(await unless_gone(request, fold_message(events)))
        return stream_response(_as_text(await begun(request, events)))

    @router.post(f"{PATH}/count_tokens")
    async def count_tokens(body: CountTokensRequest, request: Request) -> dict[str, int]:
        served = await visit_of(request).lease(pool, body.model)
        prompt = await served.prepare(lambda: encode_messages(body, tools_of(served, body), served.info))
        return {"input_tokens": len(prompt)}

    return router


def tools_of(served: Served, body: CountTokensRequest) -> ToolUse:
    """The tools that the answer may call. Raises RequestError."""
    return message_tools(served.tokenizer, body.tools, body.tool_choice)


def message_job(served: Served, body: MessagesRequest, scope: str) -> tuple[ToolUse, Job]:
    """The tools that the answer may call, and the engine's request. Raises RequestError."""
    use = tools_of(served, body)
    prompt = encode_messages(body, use, served.info)
    most_bytes = served.limits.max_schema_bytes
    constraint = message_constraint(body.output_config, use, begun=is_begun(body), most_bytes=most_bytes)
    params = with_defaults(body.sampling(constraint), served, body)
    return use, make_job(served, prompt, params, scope=scope)


async def _as_text(answer: AsyncGenerator[Sequence[Event], None]) -> AsyncIterator[str]:
    """Server-sent events, named by their types. An error becomes a last event "error"."""
    async with aclosing(answer):
        try:
            async for events in answer:
                yield "".join(sse(event, event["type"]) for event in events)
        except ForedraftError as error:
            yield sse(anthropic_error(of_error(error), error.status), "error")
        except Exception as error:  # noqa: BLE001 - the status line is already sent: report it in the stream
            yield sse(anthropic_error(unexpected(error), 500), "error")
