"""POST /v1/messages and /v1/messages/count_tokens. A complete answer is a fold over the streamed events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace

from fastapi import APIRouter, Request
from fastapi.responses import Response

from foredraft.errors import ForedraftError
from foredraft.server.anthropic.errors import PATH, anthropic_error
from foredraft.server.anthropic.events import Event, fold_message, message_events
from foredraft.server.anthropic.output import message_constraint
from foredraft.server.anthropic.prompt import as_turns, encode_messages, is_begun
from foredraft.server.anthropic.schemas import CountTokensRequest, MessagesRequest
from foredraft.server.anthropic.tools import message_tools
from foredraft.server.caller import visit_of
from foredraft.server.errors import of_error, unexpected
from foredraft.server.jobs import make_job, with_defaults
from foredraft.server.openai.tool_use import ToolUse
from foredraft.server.pool import Lease, ModelPool
from foredraft.server.rendering import json_response
from foredraft.server.sse import begun, sse, stream_response, unless_gone
from foredraft.server.strict_json import strict_router
from foredraft.server.worker import Job
from foredraft.types import Message


def messages_router(pool: ModelPool) -> APIRouter:
    """The routes for the models of `pool`."""
    router = strict_router()

    @router.post(PATH, response_model=None)
    async def messages(body: MessagesRequest, request: Request) -> Response:
        visit = visit_of(request)
        lease = await visit.lease(pool, body.model)
        preparing = lease.model.prepared(
            as_turns(body), lambda turns: message_job(lease, body, turns, visit.caller.scope)
        )
        use, job = await unless_gone(request, preparing)
        events = message_events(lease, job, use, omitted=body.thought_omitted)
        if not body.stream:
            return await json_response(await unless_gone(request, fold_message(events)))
        return stream_response(_as_text(await begun(request, events)))

    @router.post(f"{PATH}/count_tokens")
    async def count_tokens(body: CountTokensRequest, request: Request) -> dict[str, int]:
        served = (await visit_of(request).lease(pool, body.model)).model
        use = message_tools(served.tokenizer, body.tools, body.tool_choice)

        async def counted() -> int:
            async with served.pictured(as_turns(body)) as turns:
                _, prompt = await served.prepare(
                    lambda: encode_messages(body, turns, use, served.info, served.vision)
                )
            return len(prompt.tokens)

        return {"input_tokens": await unless_gone(request, counted())}

    return router


def message_job(
    lease: Lease, body: MessagesRequest, turns: Sequence[Message], scope: str
) -> tuple[ToolUse, Job]:
    """The tools that the answer may call, and the engine's request. Raises RequestError."""
    served = lease.model
    use = message_tools(served.tokenizer, body.tools, body.tool_choice)
    use, prompt = encode_messages(body, turns, use, served.info, served.vision)
    most_bytes = served.limits.max_schema_bytes
    constraint = message_constraint(body.output_config, use, begun=is_begun(body), most_bytes=most_bytes)
    params = replace(with_defaults(body.sampling(constraint), served, body), thinking=use.thinking)
    return use.under(constraint), make_job(lease, prompt, params, scope=scope)


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
