"""POST /v1/chat/completions. A complete answer is a fold over the streamed chunks."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from foredraft.errors import RequestError
from foredraft.protocols import Tokenizer
from foredraft.server.caller import visit_of
from foredraft.server.generation import choices, openai_finish, several, stop_reason
from foredraft.server.jobs import make_job, with_defaults
from foredraft.server.openai.chat_schemas import ChatRequest, as_messages
from foredraft.server.openai.chunks import Chunk, chunks_of, respond
from foredraft.server.openai.constraints import constraint_of
from foredraft.server.openai.logprobs import chat_logprobs
from foredraft.server.openai.origins import Origins
from foredraft.server.openai.schemas import limit
from foredraft.server.openai.tool_use import ToolUse, tool_use
from foredraft.server.pool import Lease, ModelPool
from foredraft.server.sse import unless_gone
from foredraft.server.strict_json import strict_router
from foredraft.server.tools.answer import deltas
from foredraft.server.tools.deltas import ArgumentsDelta, CallEnd, CallStart, ReasoningDelta, TextDelta
from foredraft.server.worker import Job
from foredraft.types import Event, FinishEvent, FinishReason, Message, TokenEvent


def chat_router(pool: ModelPool) -> APIRouter:
    """The route for the models of `pool`."""
    router = strict_router()

    @router.post("/v1/chat/completions", response_model=None)
    async def chat(body: ChatRequest, request: Request) -> Response:
        visit = visit_of(request)
        await visit.answers(body.answers, body.priority)
        lease = await visit.lease(pool, body.model)
        preparing = lease.model.prepared(
            as_messages(body.messages), lambda messages: chat_job(lease, body, messages, visit.caller.scope)
        )
        use, job = await unless_gone(request, preparing)
        jobs = several(job, body.answers)
        chunks = chat_chunks(lease, jobs, use, origins=body.with_origins)
        return await respond(request, body, chunks, add_chat_choice, "chat.completion")

    return router


def chat_tools(tokenizer: Tokenizer, body: ChatRequest) -> ToolUse:
    """The tools that the answer may call. Raises RequestError."""
    if body.parallel_tool_calls is False and not body.tools:
        raise RequestError("parallel_tool_calls needs tools.")
    parallel = body.parallel_tool_calls is not False
    return tool_use(tokenizer, body.tools, body.tool_choice, parallel=parallel)


def chat_job(lease: Lease, body: ChatRequest, messages: Sequence[Message], scope: str) -> tuple[ToolUse, Job]:
    """The tools that the answer may call, and the engine's request. Raises RequestError."""
    served = lease.model
    use = chat_tools(served.tokenizer, body)
    if body.top_logprobs is not None and not body.logprobs:
        raise RequestError("top_logprobs needs logprobs to be true.")
    if body.stream_options is not None and not body.stream:
        raise RequestError("stream_options needs stream to be true.")
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    if body.contradicts_itself:
        raise RequestError("max_tokens and max_completion_tokens differ.", hint="Send one of them.")
    use.check_size(messages, served.info)
    if body.continues:
        _check_continued(body, use)
        use, prompt = use.encode_continued(messages, body.wishes, served.vision)
    else:
        use, prompt = use.encode(messages, body.wishes, served.vision)
    prediction = _text(body.prediction.content) if body.prediction else ""
    constraint = constraint_of(
        body.response_format,
        body.grammar,
        body.regex,
        use,
        most_bytes=served.limits.max_schema_bytes,
    )
    params = body.sampling(max_tokens=body.most_tokens, logprobs=logprobs, constraint=constraint)
    params = replace(params, reasoning_budget=limit(body.most_thought))
    params = replace(with_defaults(params, served, body), thinking=use.thinking)
    return use.under(constraint), make_job(
        lease,
        prompt,
        params,
        answers=body.answers,
        prediction=prediction,
        scope=scope,
        priority=body.priority,
        max_draft=body.max_draft,
    )


def _check_continued(body: ChatRequest, use: ToolUse) -> None:
    """Raises RequestError for what is about a whole answer, if the answer goes on from the last message."""
    if use.offered:
        raise RequestError(
            "continue_final_message cannot be combined with tools.",
            hint='Remove them, or set tool_choice to "none".',
        )
    if body.grammar or body.regex or (body.response_format and body.response_format.type != "text"):
        raise RequestError(
            "A response_format, grammar or regex applies to the whole answer, but the last message already "
            "begins it.",
            hint="Remove it, or continue_final_message.",
        )


def _text(content: str | Sequence[dict[str, Any]]) -> str:
    if isinstance(content, str):
        return content
    texts = [part.get("text") for part in content]
    if not all(isinstance(text, str) for text in texts):
        raise RequestError("prediction: every content part needs a text.")
    return "".join(str(text) for text in texts)


def chat_chunks(
    lease: Lease, jobs: Sequence[Job], use: ToolUse, *, origins: bool = False
) -> AsyncGenerator[Sequence[Chunk], None]:
    """OpenAI's chunks of all answers (see `chunks_of`), with the `origins` of their text."""
    head = {
        "id": f"chatcmpl-{secrets.token_hex(12)}",
        "object": "chat.completion.chunk",
        "created": int(time.time()),
        "model": lease.name,
    }
    writers = [ChoiceWriter(index, use, origins=origins) for index in range(len(jobs))]
    return chunks_of(choices(lease.model, jobs), head, writers, len(jobs))


class ChoiceWriter:
    """Turns one answer's events into choices of chunks. With `origins`, each choice with text has them: for
    runs of its characters the drafter that proposed them, or "target".
    """

    def __init__(self, index: int, use: ToolUse, *, origins: bool = False) -> None:
        self._index = index
        self._tokenizer = use.tokenizer
        self._origins = Origins(use.tokenizer) if origins else None
        self._reader = use.reader(self._origins)
        self._begun = False

    def write(self, events: Sequence[Event]) -> Iterator[dict[str, Any]]:
        """The choices of chunks for these events."""
        if not self._begun:
            self._begun = True
            yield self._choice({"role": "assistant", "content": ""})
        if self._origins is not None:
            for event in events:
                if isinstance(event, TokenEvent):
                    self._origins.add(event)
        found = deltas(self._reader, events)
        pieces = [self._piece(delta) for delta in found if not isinstance(delta, CallEnd)]
        if logprobs := chat_logprobs(self._tokenizer, events):
            first, *pieces = pieces or [self._choice({})]
            yield {**first, "logprobs": logprobs}
        yield from pieces
        end = events[-1]
        if isinstance(end, FinishEvent):
            called = self._reader is not None and self._reader.called and end.reason is FinishReason.STOP
            finish = "tool_calls" if called else openai_finish(end.reason)
            yield self._choice({}, finish=finish) | stop_reason(end.reason)

    def _piece(self, delta: TextDelta | ReasoningDelta | CallStart | ArgumentsDelta) -> dict[str, Any]:
        choice = self._choice(chat_delta(delta))
        if self._origins is not None and isinstance(delta, TextDelta | ReasoningDelta):
            choice["origins"] = self._origins.take(len(delta.text))
        return choice

    def _choice(self, delta: Chunk, *, finish: str | None = None) -> dict[str, Any]:
        return {"index": self._index, "delta": delta, "logprobs": None, "finish_reason": finish}


def chat_delta(delta: TextDelta | ReasoningDelta | CallStart | ArgumentsDelta) -> Chunk:
    """The `delta` of a chunk for a piece of text or of a call."""
    match delta:
        case TextDelta(text):
            return {"content": text}
        case ReasoningDelta(text):
            return {"reasoning_content": text}
        case CallStart(index, call, name):
            function = {"name": name, "arguments": ""}
            return {"tool_calls": [{"index": index, "id": call, "type": "function", "function": function}]}
        case ArgumentsDelta(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}


def add_call_deltas(calls: list[Chunk], deltas: Sequence[Chunk]) -> None:
    """Fold `tool_calls` deltas into complete calls."""
    for delta in deltas:
        if "id" in delta:
            calls.append({"id": delta["id"], "type": "function", "function": dict(delta["function"])})
        else:
            calls[delta["index"]]["function"]["arguments"] += delta["function"]["arguments"]


def _empty(index: int) -> dict[str, Any]:
    message = {"role": "assistant", "content": "", "refusal": None}
    return {"index": index, "message": message, "logprobs": None, "finish_reason": None}


def add_chat_choice(before: Chunk | None, choice: Chunk) -> Chunk:
    """Fold the choice of a chunk into the choice of the complete answer."""
    answer = before or _empty(choice["index"])
    delta, logprobs, message = choice["delta"], choice["logprobs"], answer["message"]
    message["content"] = (message["content"] or "") + (delta.get("content") or "")
    if "reasoning_content" in delta:
        message["reasoning_content"] = message.get("reasoning_content", "") + delta["reasoning_content"]
    if "tool_calls" in delta:
        add_call_deltas(message.setdefault("tool_calls", []), delta["tool_calls"])
    if message.get("tool_calls") and not message["content"]:
        message["content"] = None
    if logprobs:
        answer["logprobs"] = answer["logprobs"] or {"content": [], "refusal": None}
        answer["logprobs"]["content"] += logprobs["content"]
    answer["finish_reason"] = choice["finish_reason"] or answer["finish_reason"]
    answer |= {key: choice[key] for key in ("stop_reason",) if key in choice}
    return answer
