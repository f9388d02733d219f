"""The keywords of `Engine.load`: typed, and checked."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict, get_args

import numpy as np

from foredraft.cache_folder import default_cache_dir
from foredraft.config import (
    MOST_SCALE,
    MOST_THREADS,
    Adapter,
    Dtype,
    ModelOptions,
    OtherPrograms,
    Rope,
    rpc_endpoints,
)
from foredraft.errors import ConfigError
from foredraft.library import usual_places
from foredraft.library.adapter_files import adapters_of

_LEAST = {
    "context_length": 0,
    "sequences": 1,
    "threads": 0,
    "batch": 1,
    "ubatch": 1,
    "gpu_layers": -1,
    "yarn_orig_ctx": 0,
    "memory_budget": 1,
}
_MOST = 2**31 - 1  # a C int: backends would wrap a larger one around in silence
_CHOICES = {
    "memory": ("mmap", "ram"),
    "flash_attention": ("auto", "on", "off"),
    "dtype": get_args(Dtype),
    "rope_scaling": ("auto", "none", "linear", "yarn"),
}
_ROPE = {
    "rope_scaling": "scaling",
    "rope_scale": "scale",
    "rope_freq_base": "freq_base",
    "yarn_orig_ctx": "original_context",
}
"""The options that are fields of `Rope`."""

_MOST_BASE = 1e30  # within the range of 32-bit floats
_MOST_REAL = {"rope_scale": MOST_SCALE, "rope_freq_base": _MOST_BASE}
_REALS = {
    "prefix_cache_gb": "a finite number of gigabytes, 0 for none",
    "rope_scale": f"0, or what positions are divided by: a number from 1 to {MOST_SCALE:,.0f}",
    "rope_freq_base": f"0, or the base of the frequencies: a number from 1 to {_MOST_BASE:g}",
}
_PATHS = {
    "cache_dir": "the path of a folder, or None for the user's cache directory",
    "llama_library": "the path of a shared library, or None for the packaged one",
    "mmproj": "the path of a GGUF file, 'none', or None for the one beside the model",
}
_SWITCHES = ("probe", "remember")
_THOROUGH = "thorough"
_CALLBACKS = ("progress", "notice")


class EngineOptions(TypedDict, total=False):
    """Everything about loading that has a default: see `config.ModelOptions` for what each means.

    `cache_dir` holds pulled models, measurements and, unless `remember` is false, the store of past outputs;
    None is the user's cache directory, and "~" is the home. `prefix_cache_gb`: gigabytes of KV cells that are
    kept there of sequences that make room; 0 keeps none. `rope_scaling`, `rope_scale`, `rope_freq_base` and
    `yarn_orig_ctx` are the fields of `config.Rope`. `adapters`: LoRA adapters by name, each `FILE[:SCALE]` or
    several of these, applied together; `adapter`: that of requests that name none, "" for the model alone.
    `other_programs`: the folders of Ollama, LM Studio, the
    Hugging Face cache and llama.cpp, whose models can be loaded by name, too; None is the usual ones.
    """

    context_length: int
    memory_budget: int | None
    sequences: int
    threads: int
    batch: int
    ubatch: int
    gpu_layers: int
    memory: Literal["mmap", "ram"]
    kv_type: str
    dtype: Dtype
    flash_attention: Literal["auto", "on", "off"]
    rope_scaling: Literal["auto", "none", "linear", "yarn"]
    rope_scale: float
    rope_freq_base: float
    yarn_orig_ctx: int
    probe: bool | Literal["thorough"]
    llama_library: str | Path | None
    rpc: str | Sequence[str]
    mmproj: str | Path | None
    progress: Callable[[float], None] | None
    notice: Callable[[str], None] | None
    cache_dir: str | Path | None
    other_programs: OtherPrograms | None
    remember: bool
    prefix_cache_gb: float
    adapters: Mapping[str, str | Path | Sequence[str | Path]]
    adapter: str


class LoadOptions(NamedTuple):
    """Checked `EngineOptions`: how to load the model, and what may be kept where."""

    model: ModelOptions
    cache_dir: Path
    remember: bool
    prefix_bytes: int
    adapter: str


def model_options(options: EngineOptions) -> LoadOptions:
    """Check the options, and add defaults for those not given.

    Raises ConfigError naming the option, its value and what is valid. The KV types are checked by the
    backend, which knows what it has.
    """
    unknown = set(options) - set(EngineOptions.__annotations__)
    if unknown:
        raise ConfigError(
            f"There is no option {min(unknown)!r}.",
            hint=f"Valid are: {', '.join(EngineOptions.__annotations__)}.",
        )
    values: dict[str, Any] = {name: _checked(name, value) for name, value in options.items()}
    remember: bool = values.pop("remember", True)
    cache_dir: Path = values.pop("cache_dir", None) or default_cache_dir()
    prefix_cache_gb: float = values.pop("prefix_cache_gb", 0.0)
    if prefix_cache_gb and not remember:
        raise ConfigError(
            f"prefix_cache_gb={prefix_cache_gb} and remember=False contradict each other: it keeps texts.",
            hint="Set prefix_cache_gb=0, or leave remember on.",
        )
    adapters = adapters_of(values.pop("adapters", {}))
    adapter = _adapter(values.pop("adapter", ""), adapters)
    others: OtherPrograms = values.pop("other_programs", None) or usual_places()
    rope = Rope(**{field: values.pop(name) for name, field in _ROPE.items() if name in values})
    model = ModelOptions(cache_dir=cache_dir, other_programs=others, rope=rope, adapters=adapters, **values)
    return LoadOptions(model, cache_dir, remember, int(prefix_cache_gb * 1e9), adapter)


def _adapter(name: object, adapters: Sequence[Adapter]) -> str:
    """The adapter of requests that name none. Raises ConfigError."""
    if name and name not in [adapter.name for adapter in adapters]:
        raise _wrong("adapter", name, "the name of one of the adapters, or empty")
    return str(name or "")


def _checked(name: str, value: object) -> object:
    """An option's value as `ModelOptions` wants it. Raises ConfigError."""
    if name in _LEAST:
        return _whole(name, value)
    if name in _CHOICES and not (isinstance(value, str) and value in _CHOICES[name]):
        raise _wrong(name, value, "one of " + ", ".join(map(repr, _CHOICES[name])))
    if name in _SWITCHES and (name, value) != ("probe", _THOROUGH):
        if not isinstance(value, bool | np.bool_):
            raise _wrong(name, value, "True or False")
        return bool(value)
    if name in _CALLBACKS and not (value is None or callable(value)):
        raise _wrong(name, value, "None or a function of one argument")
    if name == "kv_type" and not isinstance(value, str):
        raise _wrong(name, value, "a string: 'auto', a type such as 'f16' or 'q8_0', or K/V as in 'bf16/f16'")
    if name in _PATHS and value is not None:
        return _path(name, value)
    if name == "other_programs" and not isinstance(value, OtherPrograms | None):
        raise _wrong(name, value, "None or an OtherPrograms")
    if name in _REALS:
        return _real(name, value)
    return _hosts(value) if name == "rpc" else value


def _hosts(value: object) -> tuple[str, ...]:
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise _wrong("rpc", value, "hosts of llama.cpp's RPC, each 'host:port'")
    return rpc_endpoints(names) if value else ()


def _real(name: str, value: object) -> float:
    if isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool):
        number, most = math.inf, _MOST_REAL.get(name, sys.float_info.max)
        with suppress(OverflowError):
            number = float(value)
        if 0 <= number <= most and (name not in _ROPE or number == 0 or number >= 1):
            return number
    raise _wrong(name, value, _REALS[name])


def _whole(name: str, value: object) -> int | None:
    if name == "memory_budget" and value is None:
        return None
    most = {"threads": MOST_THREADS, "memory_budget": sys.maxsize}.get(name, _MOST)
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        number = int(value)
        if _LEAST[name] <= number <= most:
            return number
    raise _wrong(name, value, f"a whole number, {_LEAST[name]} to {most}")


def _path(name: str, value: object) -> Path:
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(path, str) or not path or "\0" in path:
        raise _wrong(name, value, _PATHS[name])
    try:
        found = Path(path).expanduser()
    except RuntimeError:  # pathlib's error for a user that does not exist
        raise _wrong(name, value, "a path whose home directory (~) exists") from None
    if name == "cache_dir" and found.exists() and not found.is_dir():
        raise _wrong(name, value, "a folder; this is a file")
    return found


def _wrong(name: str, value: object, allowed: str) -> ConfigError:
    return ConfigError(f"{name}={value!r} is not valid.", hint=f"{name} must be {allowed}.", setting=name)
