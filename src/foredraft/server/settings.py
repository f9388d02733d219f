"""The server's settings, their defaults (nowhere else) and their valid values.

Values are validated on creation: an existing settings object is valid. docs/server-settings.md documents the
settings for users.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from foredraft.config import AUTO, Dtype, ModelOptions, Speculation, Stage, parse_speculation
from foredraft.embedding import POOLINGS, Pooling
from foredraft.engine.options import EngineOptions, model_options
from foredraft.errors import ConfigError, quoted
from foredraft.library.adapter_files import LARGEST_SCALE
from foredraft.registry import check_speculation
from foredraft.sampling.params import validate_params
from foredraft.server import checks
from foredraft.server.checks import is_loopback
from foredraft.server.image_settings import ImageSettings
from foredraft.types import SamplingParams

LOCAL_CALLER = "local"
ADMIN_CALLER = "admin"
RESERVED_NAMES = (LOCAL_CALLER, ADMIN_CALLER)
"""Reserved caller names: keys must not be confused with them in logs and metrics."""

DRAFT_MODEL = "draft-model"
MIB = 1 << 20
PRIORITIES = 1_000_000
"""The highest priority; the lowest is its negative."""

_LOADING = ModelOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits on single requests and on the queue. None: limited only by the model.

    `max_waiting`: requests of one model that may queue before the next gets 429. `max_prompt_tokens` and
    `max_completion_tokens`: tokens of one answer, in addition to the context's limit. `max_n`: answers to one
    prompt. `max_stop`: stop strings. `max_logit_bias`: biased tokens. `max_schema_bytes`: size of a JSON
    schema, grammar or regular expression, as sent. `request_timeout_s`: seconds from arrival to the last
    token.
    """

    max_waiting: int = 64
    max_body_bytes: int = 32 * MIB
    max_prompt_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_n: int = 8
    max_stop: int = 16
    max_logit_bias: int = 1024
    max_schema_bytes: int = 65_536
    request_timeout_s: float = 600.0

    def __post_init__(self) -> None:
        for name in ("max_waiting", "max_stop", "max_logit_bias", "max_schema_bytes"):
            checks.whole(name, getattr(self, name), 0)
        for name in ("max_body_bytes", "max_n"):
            checks.whole(name, getattr(self, name), 1)
        for name in ("max_prompt_tokens", "max_completion_tokens"):
            if getattr(self, name) is not None:
                checks.whole(name, getattr(self, name), 1)
        checks.seconds("request_timeout_s", self.request_timeout_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingDefaults:
    """Default sampling values for requests. None: the default of the API that is used."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    max_tokens: int | None = None
    reasoning_budget: int | None = None

    def __post_init__(self) -> None:
        for name, value in self.given().items():
            try:
                validate_params(SamplingParams(**{name: value}), vocab_size=1)
            except ConfigError as error:
                error.setting = name
                raise

    def given(self) -> dict[str, Any]:
        """The values that are set, as keyword arguments for `SamplingParams`."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSettings:
    """A LoRA adapter of a model. `name`: what clients send as `model`. `path`: a GGUF file, or for a model in
    a folder a folder in PEFT's format. `scale`: what its matrices are multiplied by.
    """

    name: str
    path: str
    scale: float = 1.0

    def __post_init__(self) -> None:
        checks.model_name("name", self.name)
        checks.text("path", self.path)
        number = isinstance(self.scale, int | float) and not isinstance(self.scale, bool)
        if not number or not abs(self.scale) <= LARGEST_SCALE:  # nor NaN
            raise checks.wrong("scale", self.scale, "a number of a sensible size, such as 1.0")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """One model: its file, how it is loaded, and the defaults of its requests.

    `path`: a file, or the name of a pulled model. `aliases`: other names that clients may use. `draft_model`:
    a stage `draft-model:model=…` in addition to `speculate`. `sequences`: requests that run at once, each
    with `context_length` tokens. `pinned`: never unloaded, neither to make room nor for being idle.
    `mmproj`, `threads`, `batch`, `ubatch`, `gpu_layers`, `rpc`, `memory`, `kv_type` and `dtype` as in
    `config.ModelOptions`,
    `rope_…` and `yarn_orig_ctx` as in `config.Rope`.
    `adapters`: LoRA adapters that requests choose by name.
    `replicas`: how many engines answer with it, on Ray (`foredraft.scale`); `max_replicas`: up to how many
    there are while there are many requests, None for as many as `replicas`.
    `embeddings`: how the tokens' vectors of a text become one; "auto": as the model's files say, and another
    value makes an embedding model of any.
    """

    path: str
    aliases: tuple[str, ...] = ()
    speculate: str = AUTO
    draft_model: str | None = None
    mmproj: str | None = None
    context_length: int = _LOADING.context_length
    sequences: int = 4
    threads: int = _LOADING.threads
    batch: int = _LOADING.batch
    ubatch: int = _LOADING.ubatch
    gpu_layers: int = _LOADING.gpu_layers
    rpc: tuple[str, ...] = ()
    memory: Literal["mmap", "ram"] = _LOADING.memory
    kv_type: str = _LOADING.kv_type
    dtype: Dtype = _LOADING.dtype
    rope_scaling: Literal["auto", "none", "linear", "yarn"] = _LOADING.rope.scaling
    rope_scale: float = _LOADING.rope.scale
    rope_freq_base: float = _LOADING.rope.freq_base
    yarn_orig_ctx: int = _LOADING.rope.original_context
    embeddings: Literal["auto", "mean", "cls", "last"] = "auto"
    pinned: bool = False
    adapters: tuple[AdapterSettings, ...] = ()
    replicas: int = 1
    max_replicas: int | None = None
    sampling: SamplingDefaults = field(default_factory=SamplingDefaults)

    def __post_init__(self) -> None:
        checks.text("path", self.path)
        for alias in _strings("aliases", self.aliases):
            checks.model_name("aliases", alias)
        if self.draft_model is not None:
            checks.text("draft_model", self.draft_model)
        if self.mmproj is not None:
            checks.text("mmproj", self.mmproj)
        checks.switch("pinned", self.pinned)
        if not all(isinstance(it, AdapterSettings) for it in _strings("adapters", self.adapters)):
            raise checks.wrong("adapters", self.adapters, "a table of adapters by name")
        checks.whole("replicas", self.replicas, 1)
        if self.max_replicas is not None:
            checks.whole("max_replicas", self.max_replicas, self.replicas)
        checks.choice("embeddings", self.embeddings, ("auto", *POOLINGS))
        if not isinstance(self.sampling, SamplingDefaults):
            raise checks.wrong("sampling", self.sampling, "a table of sampling values")
        if not isinstance(self.speculate, str):
            raise checks.wrong("speculate", self.speculate, "a speculation string such as 'auto' or 'off'")
        try:
            check_speculation(self.speculation())
        except ConfigError as error:
            error.setting = error.setting or "speculate"
            raise
        model_options(self.engine_options())

    def speculation(self) -> Speculation:
        """The model's speculation: `speculate`, with the stage of `draft_model` if there is one.

        Raises ConfigError if they contradict each other, SpeculationStringError for an invalid string.
        """
        chosen = parse_speculation(self.speculate)
        if self.draft_model is None:
            return chosen
        if chosen.off or any(stage.name == DRAFT_MODEL for stage in chosen.stages):
            raise ConfigError(
                f"draft_model={quoted(self.draft_model)} and speculate={quoted(self.speculate)} contradict "
                "each other.",
                hint="Remove draft_model, or remove 'off' and 'draft-model' from speculate.",
                setting="draft_model",
            )
        return replace(chosen, stages=(*chosen.stages, Stage(DRAFT_MODEL, {"model": self.draft_model})))

    def engine_options(self) -> EngineOptions:
        """Keyword arguments for `Engine.load`."""
        return {
            "context_length": self.context_length,
            "sequences": self.sequences,
            "threads": self.threads,
            "batch": self.batch,
            "ubatch": self.ubatch,
            "gpu_layers": self.gpu_layers,
            "rpc": _strings("rpc", self.rpc),
            "memory": self.memory,
            "kv_type": self.kv_type,
            "mmproj": self.mmproj,
            "dtype": self.dtype,
            "rope_scaling": self.rope_scaling,
            "rope_scale": self.rope_scale,
            "rope_freq_base": self.rope_freq_base,
            "yarn_orig_ctx": self.yarn_orig_ctx,
            "adapters": {it.name: f"{it.path}:{float(it.scale)!r}" for it in self.adapters},
        }

    @property
    def other_names(self) -> tuple[str, ...]:
        """Its aliases and its adapters' names."""
        return (*self.aliases, *(adapter.name for adapter in self.adapters))

    @property
    def pooling(self) -> Pooling | None:
        """`embeddings`, None where the model's files say it."""
        return None if self.embeddings == "auto" else self.embeddings

    def loads_like(self, other: ModelSettings) -> bool:
        """Whether a model loaded with `other` can be kept under these settings."""
        return (self.path, self.embeddings, self.speculation(), self.engine_options()) == (
            other.path,
            other.embeddings,
            other.speculation(),
            other.engine_options(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySettings:
    """One API key, of which only the hash is stored (`auth.hash_key`).

    `scope`: its requests learn from and draft with past texts of this scope; None is the key's name. Keys
    with the same scope share it. `requests_per_minute` and `max_concurrent`: None is no limit; each of `n`
    answers counts as a running one. `max_priority`: the highest priority that its requests can set.
    """

    name: str
    hash: str
    scope: str | None = None
    requests_per_minute: int | None = None
    max_concurrent: int | None = None
    max_priority: int = 0

    def __post_init__(self) -> None:
        checks.key_name("name", self.name)
        if self.name in RESERVED_NAMES:
            raise checks.wrong("name", self.name, "another name: this one is reserved in logs and metrics")
        checks.key_hash("hash", self.hash)
        if self.scope is not None:
            checks.scope("scope", self.scope)
        for name in ("requests_per_minute", "max_concurrent"):
            if getattr(self, name) is not None:
                checks.whole(name, getattr(self, name), 1)
        checks.whole("max_priority", self.max_priority, -PRIORITIES, PRIORITIES)

    @property
    def effective_scope(self) -> str:
        return self.name if self.scope is None else self.scope


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """All settings of a server. `models`: by the name that clients use.

    `port` 0 is any free one. `default_model`: used for requests without a model; None is the first of
    `models`. `any_model_name`: a server with one model accepts any model name; None: only if the server is
    not reachable from other computers. `admin_key_hash`: hash of the key for loading and unloading.
    `cors_origins`: web origins that may use the server; none by default. `memory_budget_bytes`: for all
    loaded models together, None is no limit. `idle_timeout_s`: seconds without a request after which a model
    that is not pinned is unloaded; None keeps it. `idle_training`: train a head for the default model while
    there are no requests. `llama_library`, `cache_dir`: as for `Engine.load`.
    `remember`: read and write the store of past outputs. `prefix_cache_gb`: disk space for conversations, for
    all models together.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    models: Mapping[str, ModelSettings] = field(default_factory=dict)
    default_model: str | None = None
    any_model_name: bool | None = None
    limits: Limits = field(default_factory=Limits)
    images: ImageSettings = field(default_factory=ImageSettings)
    keys: tuple[KeySettings, ...] = ()
    admin_key_hash: str | None = None
    cors_origins: tuple[str, ...] = ()
    memory_budget_bytes: int | None = None
    idle_timeout_s: float | None = None
    idle_training: bool = False
    llama_library: Path | None = None
    cache_dir: Path | None = None
    remember: bool = True
    prefix_cache_gb: float = 0.0
    log_format: Literal["text", "json", "off"] = "text"
    metrics: bool = True

    def __post_init__(self) -> None:
        self._check_values()
        self._check_models()
        self._check_keys()

    def find_model(self, name: str | None) -> str | None:
        """The key in `models` for a name, an alias or an adapter's name, or for None of the default. None if
        there is no such model.
        """
        if name is None:
            name = self.default_model or next(iter(self.models), None)
        if name is None or name in self.models:
            return name
        return next((key for key, model in self.models.items() if name in model.other_names), None)

    def find_adapter(self, name: str | None) -> AdapterSettings | None:
        """The adapter that requests for this name are answered with, or for None those that name none."""
        asked = self.default_model if name is None else name
        adapters = (adapter for model in self.models.values() for adapter in model.adapters)
        return next((adapter for adapter in adapters if adapter.name == asked), None)

    def answering(self, name: str | None) -> str | None:
        """The key in `models` of the model that answers requests for this name; None if there is none."""
        found = self.find_model(name)
        if found is not None or len(self.models) != 1:
            return found
        several = any(model.adapters for model in self.models.values())  # a misspelt one gets an error
        by_any = self.any_model_name
        if by_any is None:
            by_any = is_loopback(self.host) and not several
        return next(iter(self.models)) if by_any else None

    def _check_values(self) -> None:
        checks.text("host", self.host)
        if self.any_model_name is not None:
            checks.switch("any_model_name", self.any_model_name)
        checks.whole("port", self.port, 0, 65_535)
        for origin in _strings("cors_origins", self.cors_origins):
            checks.origin("cors_origins", origin)
        if self.memory_budget_bytes is not None:
            checks.whole("memory_budget_bytes", self.memory_budget_bytes, 1)
        if self.idle_timeout_s is not None:
            checks.seconds("idle_timeout_s", self.idle_timeout_s)
        for name, what in (("cache_dir", "folder"), ("llama_library", "shared library")):
            if not isinstance(getattr(self, name), Path | None):
                raise checks.wrong(name, getattr(self, name), f"the path of a {what}")
        checks.switch("idle_training", self.idle_training)
        checks.switch("remember", self.remember)
        kept: EngineOptions = {"remember": self.remember, "prefix_cache_gb": self.prefix_cache_gb}
        model_options({"cache_dir": self.cache_dir, **kept})
        checks.choice("log_format", self.log_format, ("text", "json", "off"))
        checks.switch("metrics", self.metrics)

    def _check_models(self) -> None:
        for name in self.models:
            checks.model_name("models", name)
        names = [*self.models, *(name for model in self.models.values() for name in model.other_names)]
        for twice in _repeated(names):
            raise ConfigError(
                f"Two models are named {quoted(twice)}.",
                hint="Use each name only once: of models, aliases and adapters.",
                setting="aliases",
            )
        if self.default_model is not None and (
            not isinstance(self.default_model, str) or self.find_model(self.default_model) is None
        ):
            known = ", ".join(map(repr, self.models)) or "none is configured"
            raise checks.wrong("default_model", self.default_model, f"the name of a model: {known}")

    def _check_keys(self) -> None:
        if self.admin_key_hash is not None:
            checks.key_hash("admin_key_hash", self.admin_key_hash)
        for twice in _repeated([key.name for key in self.keys]):
            raise ConfigError(f"Two keys are named {quoted(twice)}.", hint="Give each key a name of its own.")
        hashes = [key.hash for key in self.keys]
        for twice in _repeated(hashes):
            names = " and ".join(key.name for key in self.keys if key.hash == twice)
            raise ConfigError(f"{names} have the same key.", hint="Create another with 'foredraft keys new'.")
        if self.admin_key_hash in hashes:
            raise ConfigError(
                f"{self.keys[hashes.index(self.admin_key_hash)].name} uses the admin key.",
                hint="The admin key must be a separate one: create another with 'foredraft keys admin'.",
            )


def _strings(name: str, values: object) -> tuple[Any, ...]:
    if not isinstance(values, tuple):
        raise checks.wrong(name, values, "a list of strings")
    return values


def _repeated(values: Sequence[str]) -> Iterator[str]:
    seen: set[str] = set()
    for value in values:
        if value in seen:
            yield value
        seen.add(value)
