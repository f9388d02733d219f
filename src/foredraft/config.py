"""Settings, their defaults (nowhere else), and the speculation string (docs/speculation.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from foredraft.errors import SpeculationStringError, quoted

AUTO = "auto"
OFF = "off"

MOST_THREADS = 512
"""llama.cpp's limit: with more threads it writes past the end of its pool."""

Dtype: TypeAlias = Literal["auto", "fp32", "bf16", "fp16"]

DEFAULT_CONTEXT = 8192
"""Tokens of context, unless the user sets a length or the model was trained for less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherPrograms:
    """Folders in which other programs store models. The models are used in place."""

    ollama: tuple[Path, ...] = ()
    lmstudio: tuple[Path, ...] = ()
    huggingface: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """How a model is loaded. 0 and "auto" are resolved from the model and the machine.

    `context_length`: tokens for each of `sequences` sequences; 0 is the length the model was trained for,
    up to `context_at_most`. `batch`: maximum rows of one forward; `ubatch`: maximum rows computed at once.
    `memory`: "mmap" pages the file in on demand, "ram" reads all of it.
    `gpu_layers`: layers to offload; -1 is as many as fit on the device. `kv_type`: "auto" picks K and V
    types for exactness on a CPU (docs/exactness.md); otherwise "f16", "q8_0", … or "K/V" as in "bf16/f16".
    `dtype`: number format to compute safetensors in; "auto" is the stored format if the device supports it.
    GGUF files are computed in their own formats.
    `llama_library`: the llama.cpp that runs GGUF files, if not the packaged one; there is one for a process
    (docs/llama-library.md).
    `watch`: the hidden states that the model returns with each forward, for heads (`Backend.features_for`).
    `heads`: the files of heads that will be loaded beside it, None for its own layers, as far as known; a
    backend may try them with the model.
    `other_programs`: folders of other programs in which a draft model is looked up by name.
    `probe`: measure batch invariance; the result is cached under `cache_dir`. "thorough" compares more, for
    some minutes, whatever is cached. `progress` is called with the loaded fraction of the weights, `notice`
    with a line for the user before a long step. An exception raised in either stops the loading.
    """

    context_length: int = 0
    context_at_most: int = DEFAULT_CONTEXT
    sequences: int = 1
    threads: int = 0
    batch: int = 512
    ubatch: int = 512
    gpu_layers: int = -1
    memory: Literal["mmap", "ram"] = "mmap"
    kv_type: str = "auto"
    dtype: Dtype = "auto"
    flash_attention: Literal["auto", "on", "off"] = "auto"
    probe: bool | Literal["thorough"] = True
    llama_library: Path | None = None
    watch: tuple[str, ...] = ()
    heads: tuple[Path | None, ...] = ()
    cache_dir: Path | None = None
    other_programs: OtherPrograms = field(default_factory=OtherPrograms)
    progress: Callable[[float], None] | None = None
    notice: Callable[[str], None] | None = None


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

    Drafter names are checked later by `registry.check_speculation`, option keys by the drafter's factory.
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
