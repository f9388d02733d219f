"""The sampling parameters that a model's authors recommend in its files: fields of SamplingParams.

llama.cpp's server reads the same from a GGUF, vLLM from `generation_config.json`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from foredraft.errors import ModelFormatError
from foredraft.library.repository import read_json

GENERATION_CONFIG = "generation_config.json"


class _Recommended(NamedTuple):
    """A parameter that files can recommend: its key in a GGUF, and its valid values."""

    gguf_key: str
    low: float
    high: float


_PARAMETERS = {
    "temperature": _Recommended("general.sampling.temp", 0.0, 10.0),
    "top_k": _Recommended("general.sampling.top_k", 0, 2**31 - 1),
    "top_p": _Recommended("general.sampling.top_p", 0.0, 1.0),
    "min_p": _Recommended("general.sampling.min_p", 0.0, 1.0),
    "repetition_penalty": _Recommended("general.sampling.penalty_repeat", 0.01, 100.0),
}
"""By name in SamplingParams, which is also the name in `generation_config.json`."""

_DIGITS = 6
"""Digits to round to: a GGUF stores 0.95 as 0.949999988."""


def recommended_in_gguf(read: Callable[[str], str | None]) -> dict[str, float]:
    """The recommendations that `read` finds in a GGUF's metadata, where each is a number as text."""
    return _sensible({name: read(known.gguf_key) for name, known in _PARAMETERS.items()})


def recommended_in_folder(folder: Path) -> dict[str, float]:
    """The recommendations of a folder of safetensors; none if the file is missing or damaged."""
    try:
        return _sensible(read_json(folder / GENERATION_CONFIG))
    except (OSError, ModelFormatError):
        return {}


def _sensible(values: Mapping[str, Any]) -> dict[str, float]:
    """Only numbers in their valid ranges: an invalid value must not make a model unusable."""
    found: dict[str, float] = {}
    for name, known in _PARAMETERS.items():
        number = _number(values.get(name))
        if number is not None and known.low <= number <= known.high:
            found[name] = int(number) if name == "top_k" else round(number, _DIGITS)
    return found


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
