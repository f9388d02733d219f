"""Creates the engine's requests within the server's limits.

For long texts this takes time: it runs in `Served.prepare`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pydantic import BaseModel

from foredraft.engine.prompt import check_tokens, encode_prediction
from foredraft.errors import ContextLengthError, RequestError
from foredraft.images import EncodedPrompt
from foredraft.sampling.constraint import compile_constraint
from foredraft.server.pool import Lease, Served
from foredraft.server.settings import Limits
from foredraft.server.worker import Job
from foredraft.types import SamplingParams

MOST_TOKENS = {"max_tokens", "max_completion_tokens", "max_output_tokens"}
"""The names of the maximum answer length in the APIs."""


def with_defaults(params: SamplingParams, served: Served, body: BaseModel) -> SamplingParams:
    """`params` of `body`, with the model's defaults for fields that the body does not set: from the settings,
    else from the model's recommendation.
    """
    most = served.limits.max_completion_tokens
    defaults: dict[str, Any] = {**served.info.recommended, **served.settings.sampling.given()}
    if most is not None and "max_tokens" in defaults:  # a default must never make a request fail
        defaults["max_tokens"] = min(defaults["max_tokens"], most)
    given = {name for name in type(body).model_fields if name in body.model_fields_set}
    given = {name for name in given if getattr(body, name) is not None}
    if given & MOST_TOKENS:
        given.add("max_tokens")
    if params.reasoning_budget is not None:
        given.add("reasoning_budget")
    return replace(params, **{name: value for name, value in defaults.items() if name not in given})


def make_job(
    lease: Lease,
    prompt: Sequence[int] | EncodedPrompt,
    params: SamplingParams,
    *,
    answers: int = 1,
    prediction: str = "",
    scope: str = "",
    priority: int = 0,
    max_draft: int | None = None,
) -> Job:
    """Create the engine's request for one of `answers` answers to a prompt. Slow work is done here, so that
    no round waits for it: the prediction is encoded and the constraint compiled.

    Raises what `check_limits`, `check_tokens`, `encode_prediction` and `compile_constraint` raise.
    """
    served = lease.model
    limits = served.limits
    tokens, images = prompt if isinstance(prompt, EncodedPrompt) else (prompt, ())
    check_limits(limits, len(tokens), params, answers)
    check_tokens(tokens, served.info)
    expected = encode_prediction(served.tokenizer, prediction, served.info)
    if params.constraint is not None:
        compile_constraint(params.constraint, served.tokenizer)
    if params.max_tokens is None and limits.max_completion_tokens is not None:
        params = replace(params, max_tokens=limits.max_completion_tokens)
    return Job(
        prompt=tokens,
        images=images,
        params=params,
        prediction=expected,
        scope=scope,
        priority=priority,
        deadline_s=limits.request_timeout_s,
        max_draft=max_draft,
        adapter=lease.adapter,
    )


def check_together(served: Served, answers: int) -> None:
    """Raises RequestError if a request has more answers, over all its prompts, than can run and wait."""
    most = served.limits.max_waiting + served.settings.sequences
    if answers > most:
        raise RequestError(
            f"{answers} answers at once are too many; at most {most} can run and wait.",
            hint="Send the prompts in several requests.",
        )


def check_limits(limits: Limits, prompt_tokens: int, params: SamplingParams, answers: int) -> None:
    """Raises RequestError and ContextLengthError for a request beyond the server's limits."""
    if answers > limits.max_n:
        raise RequestError(f"n: {answers} answers at once are too many; at most {limits.max_n}.")
    if len(params.stop) > limits.max_stop:
        raise RequestError(f"stop: {len(params.stop)} are too many; at most {limits.max_stop}.")
    if len(params.logit_bias) > limits.max_logit_bias:
        raise RequestError(
            f"logit_bias: {len(params.logit_bias)} tokens are too many; at most {limits.max_logit_bias}."
        )
    if limits.max_prompt_tokens is not None and prompt_tokens > limits.max_prompt_tokens:
        raise ContextLengthError(
            f"The prompt has {prompt_tokens} tokens; this server allows at most {limits.max_prompt_tokens}.",
            hint="Shorten the prompt.",
        )
    most = limits.max_completion_tokens
    if most is not None and params.max_tokens is not None and params.max_tokens > most:
        raise RequestError(
            f"max_tokens: {params.max_tokens} are too many; this server allows at most {most}."
        )
