"""What vLLM tells a proposer when it makes one, and what of it can be used.

The protocols name the parts of vLLM's configuration that are read; `tests/scale/test_vllm_real.py` compares
them with the installed package.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from foredraft.config import AUTO, Speculation, Stage, parse_speculation
from foredraft.engine.speculation import AUTO_STAGES
from foredraft.errors import ConfigError, SpeculationStringError, quoted
from foredraft.registry import check_speculation

OPTIONS = "foredraft"
"""The key of our options in vLLM's `additional_config`."""

CLASS = "foredraft.scale.vllm.Proposer"

HOOK = "vllm.v1.spec_decode.custom_class_proposer"
"""The module of vLLM that loads a proposer by its class."""


class SpeculativeConfig(Protocol):
    """vLLM's `SpeculativeConfig`."""

    method: str | None
    model: str | None
    num_speculative_tokens: int


class ModelConfig(Protocol):
    """vLLM's `ModelConfig`. `hf_config` is the model's own configuration, an object."""

    model: str
    max_model_len: int
    hf_config: object

    def get_vocab_size(self) -> int: ...


class SchedulerConfig(Protocol):
    """vLLM's `SchedulerConfig`."""

    max_num_seqs: int
    max_num_batched_tokens: int
    async_scheduling: bool | None


class ParallelConfig(Protocol):
    """vLLM's `ParallelConfig`."""

    pipeline_parallel_size: int


class DeviceConfig(Protocol):
    """vLLM's `DeviceConfig`."""

    device_type: str


class VllmConfig(Protocol):
    """vLLM's `VllmConfig`."""

    @property
    def speculative_config(self) -> SpeculativeConfig | None: ...
    @property
    def model_config(self) -> ModelConfig: ...
    @property
    def scheduler_config(self) -> SchedulerConfig: ...
    @property
    def parallel_config(self) -> ParallelConfig: ...
    @property
    def device_config(self) -> DeviceConfig: ...
    @property
    def additional_config(self) -> object: ...


@dataclass(frozen=True, slots=True)
class Setting:
    """What a proposer works with. `longest`: the most tokens of a draft. `vocabulary`: ids below are tokens.
    `context`: the most tokens of a request. `forward`: the most rows of a forward. `requests`: the most of
    one. `store`: the folder of past outputs, None to keep none. `processor`: whether the model runs on
    processors.
    """

    speculation: Speculation
    longest: int
    vocabulary: int
    context: int
    forward: int
    requests: int
    model: str
    end_tokens: frozenset[int]
    store: Path | None = None
    processor: bool = False

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The drafters to be made."""
        named = {stage.name for stage in self.speculation.stages}
        extra = AUTO_STAGES if self.speculation.adaptive else ()
        usable = [stage for stage in extra if stage.name not in named and stage.name not in _UNUSABLE]
        return (*self.speculation.stages, *usable)


_UNUSABLE = {
    "draft-model": "needs a second model",
    "heads": "needs the model's hidden states",
    "grammar": "needs the request's schema",
    "prediction": "needs the text that the client expects",
}
"""Drafters that need more than the tokens of the requests, which is all that vLLM tells."""


def read(config: VllmConfig) -> Setting:
    """Check what vLLM tells. Raises ConfigError for what cannot work, SpeculationStringError."""
    speculative, scheduler = config.speculative_config, config.scheduler_config
    if find_spec("vllm") is not None and find_spec(HOOK) is None:
        raise ConfigError(
            f"This version of vLLM has no {HOOK}, by which it would load a proposer.",
            hint="vLLM 0.32 and 0.33 have it: pip install 'vllm>=0.32'",
        )
    if speculative is None or speculative.method != "custom_class":
        method = None if speculative is None else speculative.method
        raise ConfigError(
            f"{CLASS} was made with the speculative method {quoted(method)}, which is another hook.",
            hint=f'Start vLLM with --speculative-config \'{{"method": "custom_class", "model": "{CLASS}", '
            '"num_speculative_tokens": 16}\'',
        )
    if scheduler.async_scheduling:
        raise ConfigError(
            "With asynchronous scheduling vLLM does not tell a proposer which tokens were sampled.",
            hint="Start vLLM without --async-scheduling.",
        )
    if config.parallel_config.pipeline_parallel_size > 1:
        raise ConfigError(
            "With pipeline parallelism several batches are computed at once, and what a forward takes cannot "
            "be measured.",
            hint="Use --tensor-parallel-size, or another speculative method.",
        )
    if getattr(speculative, "num_speculative_tokens_per_batch_size", None) is not None:
        raise ConfigError(
            "num_speculative_tokens_per_batch_size cuts drafts after they were chosen.",
            hint="Leave it out: Foredraft chooses the length by what a forward costs at each batch size.",
        )
    speculation, store = _options(config.additional_config)
    model = config.model_config
    return Setting(
        speculation=speculation,
        longest=speculative.num_speculative_tokens,
        vocabulary=model.get_vocab_size(),
        context=model.max_model_len,
        forward=scheduler.max_num_batched_tokens,
        requests=scheduler.max_num_seqs,
        model=model.model,
        end_tokens=_end_tokens(model.hf_config),
        store=store,
        processor=config.device_config.device_type == "cpu",
    )


def _options(additional: object) -> tuple[Speculation, Path | None]:
    """(what drafts, the folder of past outputs) by our part of vLLM's additional configuration."""
    given = additional.get(OPTIONS, {}) if isinstance(additional, Mapping) else {}
    example = f'--additional-config \'{{"{OPTIONS}": {{"speculate": "suffix"}}}}\''
    if not isinstance(given, Mapping):
        raise ConfigError(f"The options {quoted(given)} are no JSON object.", hint=f"For example {example}.")
    unknown = [key for key in given if key not in ("speculate", "store")]
    if unknown:
        raise ConfigError(
            f"There is no option {quoted(unknown[0])}.", hint=f"Its options are: speculate, store. {example}"
        )
    texts = {"speculate": given.get("speculate", AUTO), "store": given.get("store", "")}
    for name, text in texts.items():
        if not isinstance(text, str):
            raise ConfigError(
                f"The option {name} is a text, not {quoted(text)}.", hint=f"For example {example}."
            )
    return _speculation(texts["speculate"]), Path(texts["store"]).expanduser() if texts["store"] else None


def _speculation(text: str) -> Speculation:
    speculation = parse_speculation(text)
    for stage in speculation.stages:
        if stage.name in _UNUSABLE:
            raise SpeculationStringError(
                f"{quoted(stage.name)} {_UNUSABLE[stage.name]}, which vLLM does not give to a proposer.",
                hint="Use drafters that need the text alone: suffix, recycle and the n-gram ones. "
                "vLLM has draft models and heads of its own (--speculative-config).",
            )
    check_speculation(speculation)
    return speculation


def _end_tokens(hf_config: object) -> frozenset[int]:
    ends = getattr(hf_config, "eos_token_id", None)
    return frozenset(
        end for end in (ends if isinstance(ends, list | tuple) else [ends]) if isinstance(end, int)
    )
