"""Validation of sampling parameters, given as an object or as keywords, once for each request.

They are the fields of `types.SamplingParams`. A new one is declared there, validated here, and applied in
`processors` or `sampler`; the server's bodies (`openai/schemas.py`) and the command line's options
(`cli/sampling.py`) offer it by declaring it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import fields, replace
from typing import Any, get_args

import numpy as np

from foredraft.errors import RequestError
from foredraft.types import Constraint, ConstraintKind, SamplingOptions, SamplingParams, Thinking, VerifyRule

SAMPLING_FIELDS = tuple(field.name for field in fields(SamplingParams))
"""The names of all sampling parameters."""

BIAS_LIMIT = 100.0
"""OpenAI's range of `logit_bias`."""

REPETITION_LOW, REPETITION_HIGH = 0.01, 100.0
"""A repetition penalty beyond any use, for which no float32 logit overflows."""


def sampling_params(params: SamplingParams | None, keywords: SamplingOptions) -> SamplingParams:
    """Convert parameters given as an object or as keywords, not both. Raises RequestError."""
    if params is not None and keywords:
        raise RequestError(
            "Pass sampling parameters as `params` or as keywords, not both.",
            hint="dataclasses.replace(params, seed=1) changes a field of an object.",
        )
    if params is not None:
        return params
    unknown = set(keywords).difference(SAMPLING_FIELDS)
    if unknown:
        raise RequestError(
            f"There is no sampling parameter {min(unknown)!r}.",
            hint=f"Valid parameters: {', '.join(SAMPLING_FIELDS)}.",
        )
    return SamplingParams(**keywords)


def validate_params(params: object, vocab_size: int) -> SamplingParams:
    """The parameters in plain Python types: NumPy's numbers become Python's, sequences become tuples.

    The result is independent of the caller's lists and dicts. Raises RequestError with the field, its value
    and the valid values.
    """
    if not isinstance(params, SamplingParams):
        raise RequestError(
            f"params is a {type(params).__name__}, not SamplingParams.",
            hint="Use SamplingParams(temperature=0.7), or keywords: generate(prompt, temperature=0.7).",
        )
    checked = replace(
        params,
        temperature=_number("temperature", params.temperature, 0.0, math.inf),
        top_k=_whole("top_k", params.top_k, 0),
        top_p=_number("top_p", params.top_p, 0.0, 1.0),
        min_p=_number("min_p", params.min_p, 0.0, 1.0),
        repetition_penalty=_number(
            "repetition_penalty", params.repetition_penalty, REPETITION_LOW, REPETITION_HIGH
        ),
        presence_penalty=_number("presence_penalty", params.presence_penalty, -2.0, 2.0),
        frequency_penalty=_number("frequency_penalty", params.frequency_penalty, -2.0, 2.0),
        logit_bias=_biases(params.logit_bias, vocab_size),
        seed=None if params.seed is None else _whole("seed", params.seed, None),
        max_tokens=None if params.max_tokens is None else _whole("max_tokens", params.max_tokens, 1),
        min_tokens=_whole("min_tokens", params.min_tokens, 0),
        stop=_stop(params.stop),
        stop_tokens=_stop_tokens(params.stop_tokens, vocab_size),
        ignore_eos=_switch("ignore_eos", params.ignore_eos),
        stop_repetition=_switch("stop_repetition", params.stop_repetition),
        reasoning_budget=None
        if params.reasoning_budget is None
        else _whole("reasoning_budget", params.reasoning_budget, 0),
        logprobs=None if params.logprobs is None else _whole("logprobs", params.logprobs, 0, vocab_size),
    )
    if checked.max_tokens is not None and checked.min_tokens > checked.max_tokens:
        raise _wrong("min_tokens", checked.min_tokens, f"at most max_tokens, which is {checked.max_tokens}")
    if not isinstance(params.verify, str) or params.verify not in get_args(VerifyRule):
        raise _wrong("verify", params.verify, "one of " + ", ".join(get_args(VerifyRule)))
    _check_constraint(params.constraint)
    if params.thinking is not None and not isinstance(params.thinking, Thinking):
        raise _wrong("thinking", params.thinking, "None or a Thinking")
    return checked


def _check_constraint(constraint: object) -> None:
    """Check the type; the content is checked when it is compiled."""
    if constraint is None:
        return
    if not isinstance(constraint, Constraint):
        raise _wrong("constraint", constraint, "None or a Constraint, as in Constraint('regex', '[0-9]+')")
    kinds = get_args(ConstraintKind)
    if not isinstance(constraint.kind, str) or constraint.kind not in kinds:
        raise _wrong("constraint.kind", constraint.kind, "one of " + ", ".join(kinds))
    if not isinstance(constraint.source, str):
        raise _wrong("constraint.source", constraint.source, "text; a JSON schema as json.dumps writes it")


def _stop(stops: object) -> tuple[str, ...]:
    what = 'a tuple of strings of at least one character, as in ("\\n", "END")'
    if isinstance(stops, bytes | bytearray) or not isinstance(stops, Sequence | Set):
        raise _wrong("stop", stops, what)
    texts = tuple(stop for stop in stops if isinstance(stop, str) and stop)
    if isinstance(stops, str) or len(texts) < len(stops):
        raise _wrong("stop", stops, what)
    return texts


def _stop_tokens(tokens: object, vocab_size: int) -> tuple[int, ...]:
    if isinstance(tokens, str | bytes | bytearray) or not isinstance(tokens, Sequence | Set | np.ndarray):
        raise _wrong("stop_tokens", tokens, f"a tuple of token ids, 0 to {vocab_size - 1}")
    if isinstance(tokens, np.ndarray) and tokens.ndim != 1:
        raise _wrong("stop_tokens", tokens, "one-dimensional")
    return tuple(_whole("stop_tokens", token, 0, vocab_size - 1, what="token ids, each ") for token in tokens)


def _biases(biases: object, vocab_size: int) -> dict[int, float]:
    if not isinstance(biases, Mapping):
        raise _wrong("logit_bias", biases, "a dict of token ids and numbers, as in {42: -1.5}")
    checked: dict[int, float] = {}
    for key, value in biases.items():
        token = _whole("logit_bias", key, 0, vocab_size - 1, what="a dict with keys each ")
        checked[token] = _bias(token, value)
    return checked


def _bias(token: int, value: object) -> float:
    if isinstance(value, float | np.floating) and value == -math.inf:
        return -math.inf
    return _number("logit_bias", value, -BIAS_LIMIT, BIAS_LIMIT, what=f"for token {token} -inf (a ban) or ")


def _switch(field: str, value: object) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise _wrong(field, value, "True or False")
    return bool(value)


def _number(field: str, value: object, low: float, high: float, *, what: str = "") -> float:
    """Check a number. The comparison also rejects NaN, infinities, and integers that no float can hold."""
    if isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool):
        number = _as_float(value)
        if low <= number <= high and number != math.inf:
            return number
    bounds = f"at least {low:g}" if high == math.inf else f"between {low:g} and {high:g}"
    raise _wrong(field, value, f"{what}a finite number, {bounds}")


def _as_float(value: float | np.integer[Any] | np.floating[Any]) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.nan


def _whole(field: str, value: object, low: int | None, high: int | None = None, *, what: str = "") -> int:
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        number = int(value)
        if (low is None or number >= low) and (high is None or number <= high):
            return number
    bounds = "" if low is None else f", at least {low}" if high is None else f", {low} to {high}"
    raise _wrong(field, value, f"{what}a whole number{bounds}")


def _wrong(field: str, value: object, allowed: str) -> RequestError:
    return RequestError(f"{field} is {value!r}.", hint=f"{field} must be {allowed}.")
