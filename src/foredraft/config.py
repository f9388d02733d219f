"""Settings, their defaults (nowhere else), and the speculation string (docs/speculation.md)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

from foredraft.errors import ConfigError, SpeculationStringError, quoted

AUTO = "auto"
OFF = "off"

MOST_THREADS = 512
"""llama.cpp's limit: with more threads it writes past the end of its pool."""

Dtype: TypeAlias = Literal["auto", "fp32", "bf16", "fp16"]

DEFAULT_CONTEXT = 8192
"""Tokens of context at least, unless the user sets a length or the model takes less."""

LONGEST_CONTEXT = 2**31 - 1
"""llama.cpp counts in C ints."""

RPC_PORT = 50052
"""llama.cpp's default."""

MOST_RPC_HOSTS = 16
"""llama.cpp's limit."""

_RPC_HOST = re.compile(r"(?P<host>[A-Za-z0-9._-]+)(?::(?P<port>\d{1,5}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherPrograms:
    """Folders in which other programs store models. The models are used in place."""

    ollama: tuple[Path, ...] = ()
    lmstudio: tuple[Path, ...] = ()
    huggingface: tuple[Path, ...] = ()
    llamacpp: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter of a model, by the name that requests choose it by. Its `files`, each with a scale, are
    applied together; a file is a GGUF file or, for a model in a folder, a folder in PEFT's format.
    """

    name: str
    files: tuple[tuple[Path, float], ...]


MOST_SCALE = 1e6
"""What positions are divided by at most; no file's factor is beyond it, nor below its reciprocal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Scaling of positions for contexts that a model was not trained for, where it is not to be the file's.

    `scaling` "auto" is the file's. `scale`: what positions are divided by; 0 follows from the context length.
    `freq_base`: the base of the frequencies, 0 for the file's. `original_context`: the length that YaRN
    scales from; 0 is what the model was trained for.
    """

    scaling: Literal["auto", "none", "linear", "yarn"] = "auto"
    scale: float = 0.0
    freq_base: float = 0.0
    original_context: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """How a model is loaded. 0 and "auto" are resolved from the model and the machine.

    `context_length`: tokens for each of `sequences` sequences; 0 is the longest that the model takes and
    that fits in memory, up to `context_at_most`. `memory_budget`: bytes for weights and context together,
    None for no limit. `batch`: maximum rows of one forward; `ubatch`: maximum rows computed at once.
    `memory`: "mmap" pages the file in on demand, "ram" reads all of it.
    `gpu_layers`: layers to offload; -1 is as many as fit on the device. `kv_type`: "auto" picks K and V
    types for exactness on a CPU (docs/exactness.md); otherwise "f16", "q8_0", … or "K/V" as in "bf16/f16".
    `dtype`: number format to compute safetensors in; "auto" is the stored format if the device supports it.
    GGUF files are computed in their own formats. `rope`: how positions are scaled.
    `llama_library`: the llama.cpp that runs GGUF files, if not the packaged one; there is one for a process
    (docs/llama-library.md). `rpc`: hosts, each "host:port", that compute layers of a GGUF (docs/rpc.md).
    `watch`: the hidden states that the model returns with each forward, for heads (`Backend.features_for`).
    `heads`: the files of heads that will be loaded beside it, None for its own layers, as far as known; a
    backend may try them with the model.
    `adapters`: LoRA adapters that are loaded with it.
    `mmproj`: the file with a GGUF's vision; None is the one beside it, if any, and Path("none") none.
    `other_programs`: folders of other programs in which a draft model is looked up by name.
    `probe`: measure batch invariance; the result is cached under `cache_dir`. "thorough" compares more, for
    some minutes, whatever is cached. `progress` is called with the loaded fraction of the weights, `notice`
    with a line for the user before a long step. An exception raised in either stops the loading.
    """

    context_length: int = 0
    context_at_most: int = LONGEST_CONTEXT
    memory_budget: int | None = None
    sequences: int = 1
    threads: int = 0
    batch: int = 512
    ubatch: int = 512
    gpu_layers: int = -1
    memory: Literal["mmap", "ram"] = "mmap"
    kv_type: str = "auto"
    dtype: Dtype = "auto"
    flash_attention: Literal["auto", "on", "off"] = "auto"
    rope: Rope = field(default_factory=Rope)
    probe: bool | Literal["thorough"] = True
    llama_library: Path | None = None
    rpc: tuple[str, ...] = ()
    watch: tuple[str, ...] = ()
    heads: tuple[Path | None, ...] = ()
    adapters: tuple[Adapter, ...] = ()
    mmproj: Path | None = None
    cache_dir: Path | None = None
    other_programs: OtherPrograms = field(default_factory=OtherPrograms)
    progress: Callable[[float], None] | None = None
    notice: Callable[[str], None] | None = None


def rpc_endpoints(names: Sequence[str]) -> tuple[str, ...]:
    """RPC hosts as "host:port", of what a user wrote: each name may be several joined by commas. Raises
    ConfigError.
    """
    found: list[str] = []
    for name in [part.strip() for several in names for part in several.split(",")]:
        parts = _RPC_HOST.fullmatch(name)
        port = int(parts["port"] or RPC_PORT) if parts else 0
        if parts is None or not 0 < port < 65536:
            raise ConfigError(
                f"{quoted(name)} is not an RPC host.",
                hint=f"Write host:port, several joined by commas: 192.168.0.2:{RPC_PORT},192.168.0.3",
                setting="rpc",
            )
        endpoint = f"{parts['host'].lower()}:{port}"
        if endpoint in found:
            raise ConfigError(f"The RPC host {endpoint} is named twice.", setting="rpc")
        found.append(endpoint)
    if len(found) > MOST_RPC_HOSTS:
        raise ConfigError(
            f"{len(found)} RPC hosts are too many.", hint=f"Name {MOST_RPC_HOSTS} at most.", setting="rpc"
        )
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Stage:
    """One entry of a speculation string: a drafter and its options."""

    name: str
    options: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        if not self.options:
            return self.name
        return self.name + ":" + ",".join(f"{key}={value}" for key, value in self.options.items())


@dataclass(frozen=True, slots=True)
class Speculation:
    """A parsed speculation string. If `adaptive`, the planner chooses among all drafters by measurement;
    otherwise exactly `stages` draft, at their configured lengths. Neither: speculation is off.
    """

    adaptive: bool = True
    stages: tuple[Stage, ...] = ()

    @property
    def off(self) -> bool:
        return not self.adaptive and not self.stages

    def __str__(self) -> str:
        if self.off:
            return OFF
        head = [AUTO] if self.adaptive else []
        return ";".join(head + [str(stage) for stage in self.stages])


def as_speculation(value: object) -> Speculation:
    """Convert a `speculate` argument: a speculation string, or one that is already parsed.

    Raises SpeculationStringError for an invalid string or another type.
    """
    if isinstance(value, Speculation):
        return value
    if isinstance(value, str):
        return parse_speculation(value)
    raise SpeculationStringError(
        f"speculate={value!r} is not a speculation string.",
        hint=f"Use '{AUTO}', '{OFF}', or drafters joined by ';', as in 'suffix;draft-model:model=m.gguf'.",
    )


def parse_speculation(text: str) -> Speculation:
    """Parse `auto`, `off`, or `name[:key=value,…]` stages joined by `;`; one of the stages may be `auto`.

    Drafter names and options are checked later, by `registry.check_speculation`.
    Raises SpeculationStringError.
    """
    parts = [part.strip() for part in text.strip().split(";") if part.strip()]
    if not parts:
        raise SpeculationStringError(
            "The speculation string is empty.", hint="Use 'auto', 'off' or a drafter."
        )
    if OFF in parts or "none" in parts:
        if len(parts) > 1:
            raise SpeculationStringError(f"'off' cannot be combined with other stages: {quoted(text)}.")
        return Speculation(adaptive=False)
    stages = tuple(_parse_stage(part) for part in parts if part != AUTO)
    seen: set[str] = set()
    for stage in stages:
        if stage.name in seen:
            raise SpeculationStringError(
                f"The drafter {quoted(stage.name)} is named twice in {quoted(text)}."
            )
        seen.add(stage.name)
    return Speculation(adaptive=AUTO in parts, stages=stages)


def _parse_stage(part: str) -> Stage:
    name, _, rest = part.partition(":")
    if not name.strip():
        raise SpeculationStringError(
            f"{quoted(part)} does not name a drafter.", hint="Write a stage as name:key=value,key=value."
        )
    if name.strip() in (AUTO, OFF):
        raise SpeculationStringError(
            f"{quoted(name.strip())} has no options: {quoted(part)}.",
            hint=f"Options belong to a drafter, for example 'suffix:{rest.strip() or 'max=8'}'.",
        )
    options: dict[str, str] = {}
    for pair in filter(None, (piece.strip() for piece in rest.split(","))):
        key, equals, value = pair.partition("=")
        if not equals or not key.strip() or not value.strip():
            raise SpeculationStringError(
                f"Cannot read {quoted(pair)} in {quoted(part)}.",
                hint="Write a stage as name:key=value,key=value.",
            )
        if key.strip() in options:
            raise SpeculationStringError(f"{quoted(key.strip())} is given twice in {quoted(part)}.")
        options[key.strip()] = value.strip()
    return Stage(name.strip(), options)


Factory = TypeVar("Factory", bound=Callable[..., Any])


def checked_by(read: Callable[[Mapping[str, str]], object]) -> Callable[[Factory], Factory]:
    """Decorate a drafter's factory with what reads a stage's options and raises SpeculationStringError: so
    they are also checked where there is no model yet (`registry.check_speculation`).
    """

    def mark(factory: Factory) -> Factory:
        factory.check_options = read  # type: ignore[attr-defined]
        return factory

    return mark


def read_options(
    drafter: str, options: Mapping[str, str], defaults: Mapping[str, int | float | str]
) -> dict[str, Any]:
    """Merge a stage's options into `defaults`, converting each value to its default's type.

    Raises SpeculationStringError for an unknown key (listing the valid ones), a value of another type, or a
    negative number.
    """
    unknown = [key for key in options if key not in defaults]
    if unknown:
        valid = ", ".join(defaults) or "none"
        raise SpeculationStringError(
            f"The drafter {quoted(drafter)} has no option {quoted(unknown[0])}.",
            hint=f"Its options are: {valid}.",
        )
    values: dict[str, Any] = dict(defaults)
    for key, text in options.items():
        kind = type(defaults[key])
        try:
            values[key] = kind(text)
        except ValueError:
            raise SpeculationStringError(
                f"{drafter}: {key}={quoted(text)} is not {'a number' if kind is float else 'a whole number'}."
            ) from None
        if kind is not str and values[key] < 0:
            raise SpeculationStringError(f"{drafter}: {key}={text} must not be negative.")
    return values
