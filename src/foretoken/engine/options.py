"""The keywords of `Engine.load` and `Engine.generate`, typed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict

import platformdirs

from foretoken.config import ModelOptions
from foretoken.errors import ConfigError
from foretoken.types import VerifyRule


class EngineOptions(TypedDict, total=False):
    """Everything about loading that has a default: see `config.ModelOptions` for what each means.

    `cache_dir` holds pulled models, measurements and, unless `remember` is false, the store of past outputs.
    """

    context_length: int
    sequences: int
    threads: int
    batch: int
    ubatch: int
    gpu_layers: int
    memory: Literal["mmap", "ram"]
    kv_type: str
    flash_attention: Literal["auto", "on", "off"]
    probe: bool
    progress: Callable[[float], None] | None
    notice: Callable[[str], None] | None
    cache_dir: Path | None
    remember: bool


class SamplingOptions(TypedDict, total=False):
    """The fields of `SamplingParams` as keywords."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    seed: int | None
    max_tokens: int | None
    min_tokens: int
    stop: tuple[str, ...]
    stop_tokens: tuple[int, ...]
    ignore_eos: bool
    logprobs: int | None
    verify: VerifyRule


def model_options(options: EngineOptions) -> tuple[ModelOptions, Path, bool]:
    """(how to load the model, the cache directory, whether to remember). Raises ConfigError."""
    unknown = set(options) - set(EngineOptions.__annotations__)
    if unknown:
        raise ConfigError(
            f"There is no option {min(unknown)!r}.",
            hint=f"Valid are: {', '.join(EngineOptions.__annotations__)}.",
        )
    values: dict[str, Any] = dict(options)
    remember = bool(values.pop("remember", True))
    cache_dir = values.pop("cache_dir", None) or default_cache_dir()
    for name, least in (("context_length", 0), ("sequences", 1), ("threads", 0), ("batch", 1), ("ubatch", 1)):
        if name in values and values[name] < least:
            raise ConfigError(f"{name}={values[name]} must be at least {least}.")
    return ModelOptions(cache_dir=cache_dir, **values), cache_dir, remember


def default_cache_dir() -> Path:
    """The user's cache directory for Foretoken."""
    return Path(platformdirs.user_cache_dir("foretoken", appauthor=False))
