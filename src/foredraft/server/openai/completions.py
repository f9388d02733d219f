"""POST /v1/completions: text in, text out. A complete answer is a fold over the streamed chunks."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from fastapi import APIRouter, Request
from fastapi.responses import Response

from foredraft.engine.prompt import check_size, check_tokens, encode_infill, encode_prompt
from foredraft.engine.scoring import with_scores
from foredraft.errors import RequestError
from foredraft.protocols import Tokenizer
from foredraft.server.caller import visit_of
from foredraft.server.generation import choices, several
from foredraft.server.jobs import check_together, make_job, with_defaults
from foredraft.server.openai.chunks import Chunk, chunks_of, respond
from foredraft.server.openai.completion_choices import CompletionWriter, Echo, add_choice
from foredraft.server.openai.constraints import constraint_of
from foredraft.server.openai.schemas import CompletionRequest
from foredraft.server.pool import Lease, ModelPool
from foredraft.server.strict_json import strict_router
from foredraft.server.worker import Job


def completion_router(pool: ModelPool) -> APIRouter:
    """The route for the models of `pool`."""
    router = strict_router()

    @router.post("/v1/completions", response_model=None)
    async def completions(body: CompletionRequest, request: Request) -> Response:
        visit = visit_of(request)
        await visit.answers(body.answers, body.priority, prompts=len(_prompts(body.prompt)))
        lease = await visit.lease(pool, body.model)
        jobs, echoes = await lease.model.prepare(lambda: completion_jobs(lease, body, visit.caller.scope))
        chunks = completion_chunks(lease, jobs, echoes, body.answers)
        return await respond(request, body, chunks, add_choice, "text_completion")

    return router


def completion_jobs(lease: Lease, body: CompletionRequest, scope: str) -> tuple[list[Job], list[Echo]]:
    """The engine's requests, `n` for every prompt, and the echo of each answer. Raises RequestError."""
    if body.stream_options is not None and not body.stream:
        raise RequestError("stream_options needs stream to be true.")
    if body.best_of is not None and body.best_of != body.answers:
        raise RequestError(
            "best_of is not supported.", hint="Use n to get several answers, and choose among them."
        )
    scored, answers = bool(body.echo) and body.logprobs is not None, body.max_tokens != 0
    _check_echo(body, scored=scored, answers=answers)
    served = lease.model
    most_bytes = served.limits.max_schema_bytes
    constraint = constraint_of(None, body.grammar, body.regex, most_bytes=most_bytes)
    most = body.max_tokens if answers else None
    params = body.sampling(max_tokens=most, logprobs=body.logprobs, constraint=constraint)
    params = with_defaults(params, served, body)
    if scored or not answers:
        params = with_scores(params, score_prompt=scored, answers=answers)
    tokenizer = served.tokenizer
    prompts = _prompts(body.prompt)
    check_together(served, body.answers * len(prompts) if len(prompts) > 1 else 1)
    jobs: list[Job] = []
    echoes: list[Echo] = []
    for prompt in prompts:
        check_size("The prompt", (prompt, body.suffix), served.info)
        tokens = _encoded(tokenizer, prompt, body.suffix)
        check_tokens(tokens, served.info)  # before a token is looked up in the vocabulary
        job = make_job(
            lease,
            tokens,
            params,
            answers=body.answers,
            scope=scope,
            priority=body.priority,
            max_draft=body.max_draft,
        )
        jobs += several(job, body.answers)
        echo = Echo(_text(tokenizer, prompt), tokens if scored else ()) if body.echo else Echo()
        echoes += [echo] * body.answers
    return jobs, echoes


def _check_echo(body: CompletionRequest, *, scored: bool, answers: bool) -> None:
    """Raises RequestError for an echo that cannot be scored, and for a request without any output."""
    if scored and body.suffix is not None:
        raise RequestError("echo with logprobs cannot be combined with suffix: suffix changes the prompt.")
    if not answers and not body.echo:
        raise RequestError("max_tokens: 0 needs echo to be true; otherwise there is nothing to return.")
    if not answers and body.min_tokens:
        raise RequestError(f"min_tokens: {body.min_tokens} is more than max_tokens, which is 0.")


def _prompts(given: str | list[str] | list[int] | list[list[int]]) -> list[str | list[int]]:
    """The prompts of a request, each as text or token ids."""
    if isinstance(given, str):
        return [given]
    tokens = [part for part in given if isinstance(part, int)]
    several = [part for part in given if not isinstance(part, int)]
    return [tokens] if tokens or not given else several


def _encoded(tokenizer: Tokenizer, prompt: str | list[int], suffix: str | None) -> list[int]:
    """The tokens of a prompt with its suffix. Raises RequestError."""
    if suffix is None:
        return encode_prompt(tokenizer, prompt).tokens
    if not isinstance(prompt, str):
        raise RequestError("suffix: the prompt has to be text, not token ids.")
    return encode_infill(tokenizer, prompt, suffix)


def _text(tokenizer: Tokenizer, prompt: str | Sequence[int]) -> str:
    if isinstance(prompt, str):
        return prompt
    return b"".join(tokenizer.token_bytes(token) for token in prompt).decode("utf-8", "replace")


async def completion_chunks(
    lease: Lease, jobs: Sequence[Job], echoes: Sequence[Echo], n: int = 1
) -> AsyncGenerator[Sequence[Chunk], None]:
    """OpenAI's chunks of all answers, `n` to each prompt (see `chunks_of`), starting with the echo."""
    head = {
        "id": f"cmpl-{secrets.token_hex(12)}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": lease.name,
    }
    writers = [CompletionWriter(index, lease.model.tokenizer, echo) for index, echo in enumerate(echoes)]
    if echoed := [{**head, "choices": [choice]} for writer in writers for choice in writer.begin()]:
        yield echoed
    answers = chunks_of(choices(lease.model, jobs), head, writers, n)
    async with aclosing(answers):
        async for chunks in answers:
            yield chunks
