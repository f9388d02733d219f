"""POST /v1/completions: text in, text out. The whole answer is a fold over the streamed chunks."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from foretoken.engine.prompt import check_tokens, encode_infill, encode_prompt
from foretoken.errors import RequestError
from foretoken.protocols import Tokenizer
from foretoken.server import report
from foretoken.server.caller import visit_of
from foretoken.server.generation import choices, several
from foretoken.server.jobs import make_job, with_defaults
from foretoken.server.openai.chunks import Chunk, respond
from foretoken.server.openai.constraints import constraint_of
from foretoken.server.openai.logprobs import AnswerText, completion_logprobs
from foretoken.server.openai.schemas import MOST_ANSWERS, CompletionRequest
from foretoken.server.pool import ModelPool, Served
from foretoken.server.worker import Job
from foretoken.types import FinishEvent, TokenEvent


def completion_router(pool: ModelPool) -> APIRouter:
    """The route, for the models of `pool`."""
    router = APIRouter()

    @router.post("/v1/completions", response_model=None)
    async def completions(body: CompletionRequest, request: Request) -> Response:
        visit = visit_of(request)
        visit.answers(body.n * len(_prompts(body.prompt)), body.priority)
        served = await visit.lease(pool, body.model)
        jobs, echoes = await served.prepare(lambda: completion_jobs(served, body, visit.caller.scope))
        chunks = completion_chunks(served, jobs, echoes, visit.caller.name, body.n)
        return await respond(request, body, chunks, add_choice, "text_completion")

    return router


def completion_jobs(served: Served, body: CompletionRequest, scope: str) -> tuple[list[Job], list[str]]:
    """The engine's requests, `n` for every prompt, and what each answer begins with. Raises RequestError."""
    if body.stream_options is not None and not body.stream:
        raise RequestError("stream_options is for requests with stream set to true.")
    if body.best_of is not None and body.best_of != body.n:
        raise RequestError("best_of is not supported.", hint="Ask for n answers and choose among them.")
    if body.echo and body.logprobs is not None:
        raise RequestError("echo cannot be combined with logprobs: prompts are not scored.")
    most_bytes = served.limits.max_schema_bytes
    constraint = constraint_of(None, body.grammar, body.regex, most_bytes=most_bytes)
    params = body.sampling(max_tokens=body.max_tokens, logprobs=body.logprobs, constraint=constraint)
    params = with_defaults(params, served, body)
    tokenizer = served.tokenizer
    jobs: list[Job] = []
    echoes: list[str] = []
    for prompt in _prompts(body.prompt):
        tokens = _encoded(tokenizer, prompt, body.suffix)
        check_tokens(tokens, served.info)  # before anything looks one up in the vocabulary
        job = make_job(
            served,
            tokens,
            params,
            answers=body.n,
            scope=scope,
            priority=body.priority,
            max_draft=body.max_draft,
        )
        jobs += several(job, body.n)
        echoes += [_text(tokenizer, prompt) if body.echo else ""] * body.n
    if len(jobs) > MOST_ANSWERS:
        raise RequestError(f"{len(jobs)} answers at once are too many; at most {MOST_ANSWERS}.")
    return jobs, echoes


def _prompts(given: str | list[str] | list[int] | list[list[int]]) -> list[str | list[int]]:
    """One prompt or several, each text or token ids."""
    if isinstance(given, str):
        return [given]
    tokens = [part for part in given if isinstance(part, int)]
    several = [part for part in given if not isinstance(part, int)]
    return [tokens] if tokens or not given else several


def _encoded(tokenizer: Tokenizer, prompt: str | list[int], suffix: str | None) -> list[int]:
    """The tokens of a prompt, and of what should follow the answer. Raises RequestError."""
    if suffix is None:
        return encode_prompt(tokenizer, prompt)
    if not isinstance(prompt, str):
        raise RequestError("suffix: the prompt has to be text then.")
    return encode_infill(tokenizer, prompt, suffix)


def _text(tokenizer: Tokenizer, prompt: str | Sequence[int]) -> str:
    if isinstance(prompt, str):
        return prompt
    return b"".join(tokenizer.token_bytes(token) for token in prompt).decode("utf-8", "replace")


async def completion_chunks(
    served: Served, jobs: Sequence[Job], echoes: Sequence[str], caller: str = "local", n: int = 1
) -> AsyncGenerator[Chunk, None]:
    """OpenAI's chunks of all answers, `n` to each prompt; the last has no choices, but the usage and what
    speculation did.
    """
    head = {
        "id": f"cmpl-{secrets.token_hex(12)}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": served.name,
    }
    ends: dict[int, FinishEvent] = {}
    texts = [AnswerText(served.tokenizer) for _ in jobs]
    for index, echo in enumerate(echoes):
        if echo:
            yield {**head, "choices": [_choice(index, echo)]}
    async with aclosing(choices(served, jobs, caller)) as events:
        async for index, event in events:
            logprobs = None
            if isinstance(event, TokenEvent):
                if event.logprob is not None:
                    logprobs = completion_logprobs(served.tokenizer, event, texts[index].add(event.token))
            else:
                ends[index] = event
            finish = str(event.reason) if isinstance(event, FinishEvent) else None
            if event.text or finish or logprobs:
                yield {**head, "choices": [_choice(index, event.text, finish=finish, logprobs=logprobs)]}
    finished = [ends[index] for index in sorted(ends)]
    yield {**head, "choices": [], "usage": _usage(finished, n), **report.extras(finished)}


def _usage(ends: Sequence[FinishEvent], n: int) -> dict[str, Any]:
    """The usage of `n` answers to each prompt, in their order. Each prompt counts once."""
    firsts = ends[::n]
    prompts = sum(end.usage.prompt_tokens for end in firsts)
    usage = report.usage(ends)
    return {
        **usage,
        "prompt_tokens": prompts,
        "total_tokens": prompts + usage["completion_tokens"],
        "prompt_tokens_details": {"cached_tokens": sum(end.usage.cached_tokens for end in firsts)},
    }


def _choice(
    index: int, text: str, *, finish: str | None = None, logprobs: Chunk | None = None
) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}


def add_choice(before: Chunk | None, choice: Chunk) -> Chunk:
    """Fold the choice of a chunk into the choice of the whole answer."""
    answer = before or _choice(choice["index"], "")
    answer["text"] += choice["text"]
    answer["finish_reason"] = choice["finish_reason"] or answer["finish_reason"]
    answer["logprobs"] = _joined(answer["logprobs"], choice["logprobs"])
    return answer


def _joined(before: Chunk | None, more: Chunk | None) -> Chunk | None:
    if before is None or more is None:
        return before or more
    return {name: before[name] + more[name] for name in before}
