"""Whether sampling parameters make sense, checked once when a request comes in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import get_args

from foretoken.errors import RequestError
from foretoken.types import SamplingParams, VerifyRule

BIAS_LIMIT = 100.0
"""OpenAI's range of `logit_bias`."""


def validate_params(params: SamplingParams, vocab_size: int) -> None:
    """Raises RequestError naming the field, its value and what it may be."""
    _number("temperature", params.temperature, 0.0, math.inf)
    _whole("top_k", params.top_k, 0)
    _number("top_p", params.top_p, 0.0, 1.0)
    _number("min_p", params.min_p, 0.0, 1.0)
    _number("repetition_penalty", params.repetition_penalty, 0.0, math.inf, above=True)
    _number("presence_penalty", params.presence_penalty, -2.0, 2.0)
    _number("frequency_penalty", params.frequency_penalty, -2.0, 2.0)
    if params.seed is not None:
        _whole("seed", params.seed, None)
    if params.logprobs is not None:
        _whole("logprobs", params.logprobs, 0, vocab_size)
    _check_lengths(params)
    _check_stops(params, vocab_size)
    _check_bias(params.logit_bias, vocab_size)
    if params.verify not in get_args(VerifyRule):
        raise _wrong("verify", params.verify, "one of " + ", ".join(get_args(VerifyRule)))


def _check_lengths(params: SamplingParams) -> None:
    _whole("min_tokens", params.min_tokens, 0)
    if params.max_tokens is None:
        return
    _whole("max_tokens", params.max_tokens, 1)
    if params.min_tokens > params.max_tokens:
        raise _wrong("min_tokens", params.min_tokens, f"at most max_tokens, which is {params.max_tokens}")


def _check_stops(params: SamplingParams, vocab_size: int) -> None:
    stops: object = params.stop
    if isinstance(stops, str) or not all(isinstance(stop, str) and stop for stop in params.stop):
        raise _wrong("stop", stops, "a sequence of strings of at least one character")
    for token in params.stop_tokens:
        _whole("stop_tokens", token, 0, vocab_size - 1)


def _check_bias(biases: Mapping[int, float], vocab_size: int) -> None:
    for token, bias in biases.items():
        _whole("logit_bias", token, 0, vocab_size - 1, what="a token id that is ")
        if bias != -math.inf:
            what = f"for token {token} -inf (a ban) or "
            _number("logit_bias", bias, -BIAS_LIMIT, BIAS_LIMIT, what=what)


def _number(
    field: str, value: object, low: float, high: float, *, above: bool = False, what: str = ""
) -> None:
    """NaN and infinities fail every comparison here, on purpose."""
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if good:
        assert isinstance(value, int | float)
        good = (value > low if above else value >= low) and value <= high and abs(value) != math.inf
    if not good:
        bounds = f"above {low:g}" if above else f"at least {low:g}"
        if high != math.inf:
            bounds = f"between {low:g} and {high:g}"
        raise _wrong(field, value, f"{what}a finite number, {bounds}")


def _whole(field: str, value: object, low: int | None, high: int | None = None, *, what: str = "") -> None:
    good = isinstance(value, int) and not isinstance(value, bool)
    if good:
        assert isinstance(value, int)
        good = (low is None or value >= low) and (high is None or value <= high)
    if not good:
        bounds = "" if low is None else f", at least {low}" if high is None else f", {low} to {high}"
        raise _wrong(field, value, f"{what}a whole number{bounds}")


def _wrong(field: str, value: object, allowed: str) -> RequestError:
    return RequestError(f"{field} is {value!r}.", hint=f"{field} must be {allowed}.")
