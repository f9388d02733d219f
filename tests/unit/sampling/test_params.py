"""Bad sampling values are refused with the field, the value and the range."""

from __future__ import annotations

import math
from typing import Any, get_type_hints

import numpy as np
import pytest

from foredraft.errors import RequestError
from foredraft.sampling.params import SAMPLING_FIELDS, sampling_params, validate_params
from foredraft.types import SamplingOptions, SamplingParams

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
    {"repetition_penalty": 0.01},
    {"repetition_penalty": 100},
    {"stop": ["END"], "stop_tokens": {7}},
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
    ("temperature", 10**400, "finite"),
    ("temperature", np.float32(math.nan), "finite"),
    ("temperature", None, "number"),
    ("top_k", np.float64(2.0), "whole number"),
    ("top_k", None, "whole number"),
    ("top_k", np.bool_(True), "whole number"),
    ("repetition_penalty", 0.0, "between 0.01 and 100"),
    ("repetition_penalty", 1e39, "between 0.01 and 100"),
    ("repetition_penalty", 1e-46, "between 0.01 and 100"),
    ("repetition_penalty", math.nan, "between 0.01 and 100"),
    ("presence_penalty", 2.1, "between -2 and 2"),
    ("presence_penalty", math.nan, "between -2 and 2"),
    ("frequency_penalty", -2.1, "between -2 and 2"),
    ("logit_bias", {100: 1.0}, "0 to 99"),
    ("logit_bias", {-1: 1.0}, "0 to 99"),
    ("logit_bias", {"3": 1.0}, "whole number"),
    ("logit_bias", {3: None}, "for token 3"),
    ("logit_bias", None, "a dict of token ids"),
    ("logit_bias", [1], "a dict of token ids"),
    ("logit_bias", {3: math.nan}, "for token 3"),
    ("logit_bias", {3: math.inf}, "for token 3"),
    ("logit_bias", {3: 101.0}, "between -100 and 100"),
    ("seed", 1.0, "whole number"),
    ("max_tokens", 0, "at least 1"),
    ("max_tokens", -1, "at least 1"),
    ("min_tokens", -1, "at least 0"),
    ("stop", ("",), "at least one character"),
    ("stop", "END", "tuple of strings"),
    ("stop", "", "tuple of strings"),
    ("stop", b"END", "tuple of strings"),
    ("stop", ("a", 3), "tuple of strings"),
    ("stop", None, "tuple of strings"),
    ("stop", 5, "tuple of strings"),
    ("stop_tokens", None, "tuple of token ids"),
    ("stop_tokens", 3, "tuple of token ids"),
    ("stop_tokens", "3", "tuple of token ids"),
    ("stop_tokens", b"3", "tuple of token ids"),
    ("stop_tokens", ("3",), "0 to 99"),
    ("stop_tokens", np.array([[1]]), "one-dimensional"),
    ("ignore_eos", "no", "True or False"),
    ("ignore_eos", None, "True or False"),
    ("stop_tokens", (100,), "0 to 99"),
    ("stop_tokens", (-1,), "0 to 99"),
    ("logprobs", -1, "0 to 100"),
    ("logprobs", 101, "0 to 100"),
    ("verify", "hope", "match, rejection, block"),
    ("verify", None, "match, rejection, block"),
    ("verify", ["match"], "match, rejection, block"),
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


@pytest.mark.parametrize("params", [None, {"temperature": 1}, "greedy", 0.7])
def test_refuses_what_is_not_sampling_params(params: object) -> None:
    with pytest.raises(RequestError, match=f"params is a {type(params).__name__}") as caught:
        validate_params(params, vocab_size=100)
    assert "SamplingParams(" in (caught.value.hint or "")


def test_numbers_of_numpy_become_pythons() -> None:
    given: dict[str, Any] = {
        "temperature": np.float32(0.5),
        "top_k": np.int64(2),
        "top_p": np.float64(0.5),
        "repetition_penalty": np.int32(2),
        "logit_bias": {np.int64(3): np.float32(-1.5), 4: np.float32(-math.inf)},
        "seed": np.uint64(2**63),
        "max_tokens": np.int64(3),
        "min_tokens": np.int8(1),
        "stop_tokens": np.array([5, 6]),
        "ignore_eos": np.bool_(True),
        "logprobs": np.uint8(2),
    }
    checked = validate_params(SamplingParams(**given), vocab_size=100)
    assert checked == SamplingParams(
        temperature=0.5,
        top_k=2,
        top_p=0.5,
        repetition_penalty=2.0,
        logit_bias={3: -1.5, 4: -math.inf},
        seed=2**63,
        max_tokens=3,
        min_tokens=1,
        stop_tokens=(5, 6),
        ignore_eos=True,
        logprobs=2,
    )
    assert {type(getattr(checked, field)) for field in given} == {float, int, dict, tuple, bool}
    assert [type(token) for token in (*checked.stop_tokens, *checked.logit_bias)] == [int] * 4


def test_what_comes_back_does_not_change_with_the_callers_objects() -> None:
    biases, stop_tokens = {1: 2.0}, [3]
    given: dict[str, Any] = {"logit_bias": biases, "stop_tokens": stop_tokens}
    checked = validate_params(SamplingParams(**given), vocab_size=100)
    biases[1], stop_tokens[0] = math.nan, 10**6
    assert checked.logit_bias == {1: 2.0}
    assert checked.stop_tokens == (3,)


def test_good_parameters_come_back_as_they_were() -> None:
    params = SamplingParams(temperature=0.7, stop=("END",), stop_tokens=(1,), logit_bias={2: 1.0}, seed=-1)
    assert validate_params(params, vocab_size=100) == params


def test_keywords_are_those_of_the_object() -> None:
    annotated = get_type_hints(SamplingParams), get_type_hints(SamplingOptions)
    assert annotated[0] == annotated[1]
    assert set(SAMPLING_FIELDS) == annotated[0].keys()


def test_settings_are_an_object_or_keywords() -> None:
    params = SamplingParams(seed=1)
    assert sampling_params(params, {}) is params
    assert sampling_params(None, {"seed": 1}) == params
    with pytest.raises(RequestError, match="not both"):
        sampling_params(params, {"seed": 2})


def test_an_unknown_setting_lists_the_valid_ones() -> None:
    unknown: Any = {"temp": 1}
    with pytest.raises(RequestError, match="no sampling parameter 'temp'") as caught:
        sampling_params(None, unknown)
    assert "temperature" in (caught.value.hint or "")
