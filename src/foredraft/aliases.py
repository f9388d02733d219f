"""Other tools' options for speculation, with the same meaning as there (docs/speculation.md).

picolm: `--draft FILE`, `-d K`. llama.cpp: `--spec-type a,b`, `-md`, `--spec-draft-…`, `--spec-ngram-…`,
`-lcs`, `-lcd`. vLLM: `--speculative-config JSON`. Each is translated into stages of a speculation string.
Options of only one tool can be used at a time, because they set the same thing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from foredraft.config import AUTO, Speculation, Stage, parse_speculation
from foredraft.errors import SpeculationStringError, quoted

PICOLM_DRAFT_TOKENS = 4
LLAMA_DRAFT_TOKENS = 3
LLAMA_DRAFT_TYPE = "draft-simple"
LLAMA_NGRAM_TYPES = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")
LLAMA_HEAD_TYPES = ("draft-eagle3", "draft-mtp", "draft-dflash", "draft-dspark")


@dataclass(frozen=True, slots=True, kw_only=True)
class PicolmOptions:
    """picolm's `--draft FILE` and `-d K`: a draft model and the tokens it drafts each round."""

    draft: str | None = None
    tokens: int | None = None

    @property
    def used(self) -> bool:
        return self.draft is not None or self.tokens is not None

    def speculation(self) -> Speculation:
        if self.draft is None:
            raise SpeculationStringError("-d needs a draft model.", hint="Name it with --draft FILE.")
        count = PICOLM_DRAFT_TOKENS if self.tokens is None else self.tokens
        return Speculation(
            adaptive=False, stages=(Stage("draft-model", {"model": self.draft, "max": str(count)}),)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaOptions:
    """llama.cpp's flags. `ngram` holds the --spec-ngram-* values by type and our option's name; `is_head`:
    the model is a head.
    """

    types: str | None = None
    model: str | None = None
    is_head: bool = False
    n_max: int | None = None
    n_min: int | None = None
    p_min: float | None = None
    ngram: Mapping[tuple[str, str], int] = field(default_factory=dict)
    lookup_static: str | None = None
    lookup_dynamic: str | None = None

    @property
    def used(self) -> bool:
        plain = (self.types, self.model, self.n_max, self.n_min, self.p_min)
        return bool(self.ngram) or any(
            value is not None for value in (*plain, self.lookup_static, self.lookup_dynamic)
        )

    def speculation(self) -> Speculation:
        names = self._names()
        self._check_all_used(names)
        if names == ["none"]:
            return Speculation(adaptive=False)
        stages = [self._stage(name) for name in names]
        return Speculation(adaptive=False, stages=tuple(stages))

    def _names(self) -> list[str]:
        names = list(dict.fromkeys(name.strip() for name in (self.types or "").split(",") if name.strip()))
        heads = [name for name in names if name in LLAMA_HEAD_TYPES]
        if self.model is not None and LLAMA_DRAFT_TYPE not in names and not heads:
            names.append(LLAMA_HEAD_TYPES[0] if self.is_head else LLAMA_DRAFT_TYPE)
        if not names:
            names = sorted({kind for kind, _ in self.ngram})
        if not names:
            raise SpeculationStringError(
                "These flags configure speculation, but no type of speculation is turned on.",
                hint=f"Add --spec-type with one of {', '.join(LLAMA_NGRAM_TYPES)}, or -md FILE.",
            )
        for name in names:
            if name not in (*LLAMA_NGRAM_TYPES, *LLAMA_HEAD_TYPES, LLAMA_DRAFT_TYPE, "none"):
                valid = ", ".join(("none", LLAMA_DRAFT_TYPE, *LLAMA_HEAD_TYPES, *LLAMA_NGRAM_TYPES))
                raise SpeculationStringError(
                    f"There is no --spec-type {quoted(name)}.", hint=f"Valid are: {valid}."
                )
        if len(heads) > 1 or (heads and LLAMA_DRAFT_TYPE in names):
            raise SpeculationStringError(
                f"--spec-type {','.join(names)} names two models that draft.",
                hint="Name one, beside n-gram types if you like.",
            )
        return names

    def _check_all_used(self, names: Sequence[str]) -> None:
        """Reject flags of a type that is not turned on, instead of ignoring them silently."""
        head = next((name for name in names if name in LLAMA_HEAD_TYPES), None)
        drafting: dict[str, float | None] = {
            "--spec-draft-n-max": self.n_max,
            "--spec-draft-n-min": self.n_min,
            "--spec-draft-p-min": self.p_min,
        }
        if head is not None and self.n_min is not None:
            raise SpeculationStringError(
                f"--spec-draft-n-min has no counterpart for {head}: what a head drafts is verified.",
                hint="Leave it out, or use --spec-draft-p-min.",
            )
        cache = {"--lookup-cache-static": self.lookup_static, "--lookup-cache-dynamic": self.lookup_dynamic}
        ngram = {f"--spec-{kind}-…": kind for kind, _ in self.ngram}
        needed = {flag: head or LLAMA_DRAFT_TYPE for flag, value in drafting.items() if value is not None}
        needed |= {flag: "ngram-cache" for flag, value in cache.items() if value is not None} | ngram
        for flag, kind in needed.items():
            if kind not in names:
                raise SpeculationStringError(
                    f"{flag} configures {kind}, which is not turned on.", hint=f"Add {kind} to --spec-type."
                )
        if "none" in names and len(names) > 1:
            raise SpeculationStringError("--spec-type none cannot be combined with other types.")

    def _stage(self, name: str) -> Stage:
        if name == LLAMA_DRAFT_TYPE:
            return self._draft_stage()
        if name in LLAMA_HEAD_TYPES:
            return Stage("heads", self._drafting())
        options = {key: str(value) for (kind, key), value in self.ngram.items() if kind == name}
        if name == "ngram-cache":
            if self.lookup_static is not None:
                options["static"] = self.lookup_static
            if self.lookup_dynamic is not None:
                options["dynamic"] = self.lookup_dynamic
        return Stage(name, options)

    def _draft_stage(self) -> Stage:
        if self.model is None:
            raise SpeculationStringError(
                f"--spec-type {LLAMA_DRAFT_TYPE} needs a draft model.", hint="Name it with -md FILE."
            )
        options = self._drafting()
        if self.n_min is not None:
            options["min"] = str(self.n_min)
        return Stage("draft-model", options)

    def _drafting(self) -> dict[str, str]:
        """The options of whatever drafts, a model or a head."""
        options = {} if self.model is None else {"model": self.model}
        options["max"] = str(LLAMA_DRAFT_TOKENS if self.n_max is None else self.n_max)
        if self.p_min is not None:
            options["min-p"] = str(self.p_min)
        return options


_VLLM_KEYS = {
    "ngram": ("prompt_lookup_min", "prompt_lookup_max"),
    "suffix": ("suffix_decoding_max_tree_depth", "suffix_decoding_min_token_prob"),
    "draft_model": (),
    "heads": (),
}
_VLLM_HEADS = ("eagle3", "mtp", "dflash", "dspark")
_VLLM_COMMON = ("method", "model", "num_speculative_tokens")


def parse_vllm(text: str) -> Speculation:
    """Read vLLM's `--speculative-config`: methods `ngram`, `suffix`, `mtp` (also under a model's name, as in
    `deepseek_mtp`), `eagle3`, `dflash`, `dspark`, and a draft `model`.

    Raises SpeculationStringError for invalid JSON, and for keys or methods that have no counterpart here:
    nothing is ignored silently.
    """
    try:
        config = json.loads(text)
    except ValueError as error:
        raise SpeculationStringError(f"--speculative-config is not valid JSON: {error}.") from None
    if not isinstance(config, dict):
        raise SpeculationStringError("--speculative-config must be a JSON object.")
    method = _vllm_method(config)
    valid = (*_VLLM_COMMON, *_VLLM_KEYS[method])
    for key in config:
        if key not in valid:
            raise SpeculationStringError(
                f"--speculative-config has no key {quoted(key)} for method {quoted(method)}.",
                hint=f"Known: {', '.join(valid)}.",
            )
    return Speculation(adaptive=False, stages=(_vllm_stage(config, method),))


def _vllm_method(config: Mapping[str, Any]) -> str:
    model = config.get("model")
    if model in ("ngram", "[ngram]"):
        return "ngram"
    method = config.get("method") or "draft_model"
    if method == "draft_model" and isinstance(model, str):
        return "draft_model"
    if method in ("ngram", "suffix") and model is None:
        return str(method)
    named = isinstance(method, str) and (method in _VLLM_HEADS or method.endswith("_mtp"))
    if named and (model is None or isinstance(model, str)):
        return "heads"
    unknown = sorted(set(config) - {*_VLLM_COMMON, *(key for keys in _VLLM_KEYS.values() for key in keys)})
    if unknown:
        raise SpeculationStringError(
            f"--speculative-config has no key {quoted(unknown[0])}.",
            hint=f"Known: {', '.join(_VLLM_COMMON)}.",
        )
    with_model = "without a model" if model is None else f"with model {quoted(model)}"
    raise SpeculationStringError(
        f"--speculative-config method {quoted(method)} {with_model} has no counterpart here.",
        hint='Use "method": "ngram" or "suffix" without a model, "mtp", "eagle3", "dflash" or "dspark" for a '
        'head, or "model": "FILE" for a draft model.',
    )


def _vllm_stage(config: Mapping[str, Any], method: str) -> Stage:
    options: dict[str, str] = {}
    tokens = config.get("num_speculative_tokens", config.get("suffix_decoding_max_tree_depth"))
    if tokens is not None:
        options["max"] = tokens if isinstance(tokens, str) else quoted(tokens)
    if method == "draft_model":
        return Stage("draft-model", {"model": str(config["model"]), **options})
    if method == "heads":
        named = {} if config.get("model") is None else {"model": str(config["model"])}
        return Stage("heads", named | options)
    if method == "ngram":
        # Both search for the longest earlier n-gram, ours without an upper bound, and draft the full length.
        options["min"] = str(config.get("prompt_lookup_min", config.get("prompt_lookup_max", 5)))
        options["min-p"] = "0"
    elif "suffix_decoding_min_token_prob" in config:
        options["min-p"] = str(config["suffix_decoding_min_token_prob"])
    return Stage("suffix", options)


def choose_speculation(
    speculate: str | None,
    picolm: PicolmOptions | None = None,
    llama: LlamaOptions | None = None,
    vllm: str | None = None,
) -> Speculation:
    """The speculation that the flags configure; `auto` without any.

    Raises SpeculationStringError if flags of several tools are mixed.
    """
    picolm, llama = picolm or PicolmOptions(), llama or LlamaOptions()
    given = {
        "--speculate": speculate is not None,
        "--draft/-d": picolm.used,
        "--spec-…/-md": llama.used,
        "--speculative-config": vllm is not None,
    }
    used = [flag for flag, present in given.items() if present]
    if len(used) > 1:
        raise SpeculationStringError(
            f"{' and '.join(used)} both configure speculation.",
            hint="Use one of them; --speculate accepts several drafters: 'suffix;draft-model:model=FILE'.",
        )
    if picolm.used:
        return picolm.speculation()
    if llama.used:
        return llama.speculation()
    if vllm is not None:
        return parse_vllm(vllm)
    return parse_speculation(AUTO if speculate is None else speculate)
