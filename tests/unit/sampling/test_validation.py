"""Bad sampling values are refused with the field, the value and the range."""

from __future__ import annotations

import math
from typing import Any

import pytest

from foretoken.errors import RequestError
from foretoken.sampling.sampler import validate_params
from foretoken.types import SamplingParams

GOOD: list[dict[str, Any]] = [
    {},
    {"temperature": 0},
    {"temperature": 2.5, "top_k": 40, "top_p": 0.95, "min_p": 0.05},
    {"top_p": 0.0},
    {"repetition_penalty": 1.3, "presence_penalty": -2.0, "frequency_penalty": 2.0},
    {"logit_bias": {0: -100.0, 99: 100, 5: -math.inf}},
    {"seed": -3},
    {"seed": 2**70},
    {"max_tokens": 5, "min_tokens": 5},
    {"min_tokens": 5},
    {"stop": ("\n", "END"), "stop_tokens": (0, 99)},
    {"logprobs": 0},
    {"logprobs": 20, "verify": "block"},
]

BAD: list[tuple[str, Any, str]] = [
    ("temperature", -0.1, "at least 0"),
    ("temperature", math.nan, "at least 0"),
    ("temperature", math.inf, "finite"),
    ("temperature", "0.7", "number"),
    ("temperature", True, "number"),
    ("top_k", -1, "at least 0"),
    ("top_k", 1.5, "whole number"),
    ("top_p", 1.01, "between 0 and 1"),
    ("top_p", -0.01, "between 0 and 1"),
    ("top_p", math.nan, "between 0 and 1"),
    ("min_p", 2.0, "between 0 and 1"),
    ("min_p", math.nan, "between 0 and 1"),
    ("repetition_penalty", 0.0, "above 0"),
    ("repetition_penalty", math.nan, "above 0"),
    ("presence_penalty", 2.1, "between -2 and 2"),
    ("presence_penalty", math.nan, "between -2 and 2"),
    ("frequency_penalty", -2.1, "between -2 and 2"),
    ("logit_bias", {100: 1.0}, "0 to 99"),
    ("logit_bias", {-1: 1.0}, "0 to 99"),
    ("logit_bias", {3: math.nan}, "for token 3"),
    ("logit_bias", {3: math.inf}, "for token 3"),
    ("logit_bias", {3: 101.0}, "between -100 and 100"),
    ("seed", 1.0, "whole number"),
    ("max_tokens", 0, "at least 1"),
    ("max_tokens", -1, "at least 1"),
    ("min_tokens", -1, "at least 0"),
    ("stop", ("",), "at least one character"),
    ("stop", "END", "sequence of strings"),
    ("stop", ("a", 3), "sequence of strings"),
    ("stop_tokens", (100,), "0 to 99"),
    ("stop_tokens", (-1,), "0 to 99"),
    ("logprobs", -1, "0 to 100"),
    ("logprobs", 101, "0 to 100"),
    ("verify", "hope", "match, rejection, block"),
]


@pytest.mark.parametrize("fields", GOOD)
def test_accepts(fields: dict[str, Any]) -> None:
    validate_params(SamplingParams(**fields), vocab_size=100)


@pytest.mark.parametrize(("field", "value", "allowed"), BAD)
def test_refuses_naming_field_value_and_range(field: str, value: Any, allowed: str) -> None:
    with pytest.raises(RequestError) as caught:
        validate_params(SamplingParams(**{field: value}), vocab_size=100)
    assert field in caught.value.message
    assert allowed in (caught.value.hint or "")
    shown = next(iter(value)) if isinstance(value, dict | tuple) and allowed == "0 to 99" else None
    assert repr(value if shown is None else shown) in caught.value.message or isinstance(value, dict)


def test_refuses_more_min_tokens_than_max_tokens() -> None:
    with pytest.raises(RequestError, match="min_tokens is 6"):
        validate_params(SamplingParams(min_tokens=6, max_tokens=5), vocab_size=100)
