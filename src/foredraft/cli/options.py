"""Options that several commands share, and what they mean for the engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, get_args

import click

from foredraft.aliases import LlamaOptions, PicolmOptions, choose_speculation
from foredraft.cli.values import FiniteRange, Utf8
from foredraft.config import MOST_THREADS, Dtype, Speculation
from foredraft.types import SamplingParams

Command = TypeVar("Command", bound=Callable[..., Any])

_NGRAM_FLAGS = {
    "--spec-ngram-simple-size-n": ("ngram-simple", "n"),
    "--spec-ngram-simple-size-m": ("ngram-simple", "m"),
    "--spec-ngram-simple-min-hits": ("ngram-simple", "min-hits"),
    "--spec-ngram-map-k-size-n": ("ngram-map-k", "n"),
    "--spec-ngram-map-k-size-m": ("ngram-map-k", "m"),
    "--spec-ngram-map-k-min-hits": ("ngram-map-k", "min-hits"),
    "--spec-ngram-map-k4v-size-n": ("ngram-map-k4v", "n"),
    "--spec-ngram-map-k4v-size-m": ("ngram-map-k4v", "m"),
    "--spec-ngram-map-k4v-min-hits": ("ngram-map-k4v", "min-hits"),
    "--spec-ngram-mod-n-match": ("ngram-mod", "n"),
    "--spec-ngram-mod-n-min": ("ngram-mod", "min"),
    "--spec-ngram-mod-n-max": ("ngram-mod", "max"),
}


def _all(*decorators: Callable[[Any], Any]) -> Callable[[Command], Command]:
    def apply(command: Command) -> Command:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return apply


def _name(flag: str) -> str:
    return flag.lstrip("-").replace("-", "_")


model_options = _all(
    click.option("--ctx", "context_length", type=click.IntRange(0), default=0, show_default="up to 8192",
                 help="Context length in tokens, prompt and answer together."),
    click.option("--threads", "-t", type=click.IntRange(0, MOST_THREADS), default=0,
                 show_default="physical cores", help="CPU threads."),
    click.option("--gpu-layers", "-ngl", type=click.IntRange(-1), default=-1,
                 show_default="all; safetensors: as many as fit",
                 help="Layers to put on the GPU, where there is one."),
    click.option("--mem", "memory", type=click.Choice(["mmap", "ram"]), default="mmap", show_default=True,
                 help="Page the model in on demand, or read it into memory."),
    click.option("--batch", "-b", type=click.IntRange(1), default=512, show_default=True,
                 help="Most tokens in one forward."),
    click.option("--ubatch", "-ub", type=click.IntRange(1), default=512, show_default=True,
                 help="Most tokens computed at once."),
    click.option("--kv-type", default="auto", show_default=True, metavar="TYPE|K/V",
                 help="Type of the KV cache; auto keeps the output exact on a CPU."),
    click.option("--dtype", type=click.Choice(get_args(Dtype)), default="auto", show_default=True,
                 help="Number format to compute safetensors in; a GGUF has its own."),
)  # fmt: skip

remember_option = click.option(
    "--no-remember", is_flag=True, help="Neither read nor write the store of past outputs."
)

sampling_options = _all(
    click.option("--max-tokens", "-n", type=click.IntRange(1), default=None, show_default="until it ends",
                 help="Most tokens to generate."),
    click.option("--temperature", "--temp", type=float, default=0.0, show_default=True, help="0 is greedy."),
    click.option("--top-k", type=int, default=0, show_default="off", help="Sample from the k most likely."),
    click.option("--top-p", type=float, default=1.0, show_default="off", help="Nucleus sampling."),
    click.option("--min-p", type=float, default=0.0, show_default="off",
                 help="Drop tokens less likely than this share of the likeliest."),
    click.option("--repetition-penalty", type=float, default=1.0, show_default="off",
                 help="Above 1: tokens of the prompt and the answer become less likely."),
    click.option("--presence-penalty", type=float, default=0.0, show_default="off",
                 help="Taken from the logit of every token in the answer."),
    click.option("--frequency-penalty", type=float, default=0.0, show_default="off",
                 help="The same, for each time it occurs there."),
    click.option("--seed", "-s", type=int, default=None, show_default="random",
                 help="Same seed, same text."),
    click.option("--stop", type=Utf8(), multiple=True, metavar="TEXT",
                 help="End before this text. Repeatable."),
    click.option("--ignore-eos", is_flag=True, help="Go on after the model's end token."),
    click.option("--verify", type=click.Choice(["match", "rejection", "block"]), default="match",
                 show_default=True, help="How drafts are checked; only match keeps the same bytes."),
)  # fmt: skip

speculation_options = _all(
    click.option("--speculate", metavar="SPEC", default=None, show_default="auto",
                 help="auto, off, or drafters: 'suffix;draft-model:model=FILE,max=8'."),
    click.option("--draft", metavar="FILE", default=None, help="picolm: draft model."),
    click.option("-d", "draft_tokens", metavar="K", type=click.IntRange(1), default=None,
                 help="picolm: tokens it drafts each round."),
    click.option("--spec-type", metavar="A,B", default=None, help="llama.cpp: types of speculation."),
    click.option("--spec-draft-model", "--model-draft", "-md", "model_draft", metavar="FILE", default=None,
                 help="llama.cpp: draft model."),
    click.option("--spec-draft-n-max", "--draft-max", "draft_n_max", type=click.IntRange(1), default=None,
                 help="llama.cpp: most tokens to draft."),
    click.option("--spec-draft-n-min", "--draft-min", "draft_n_min", type=click.IntRange(0), default=None,
                 help="llama.cpp: drafts shorter than this are dropped."),
    click.option("--spec-draft-p-min", "--draft-p-min", "draft_p_min", type=FiniteRange(0, 1),
                 default=None, help="llama.cpp: stop drafting below this probability."),
    click.option("--lookup-cache-static", "-lcs", metavar="FILE", default=None,
                 help="llama.cpp: static file of ngram-cache."),
    click.option("--lookup-cache-dynamic", "-lcd", metavar="FILE", default=None,
                 help="llama.cpp: dynamic file of ngram-cache."),
    *(click.option(flag, _name(flag), type=click.IntRange(0), default=None,
                   help=f"llama.cpp: {key} of {kind}.") for flag, (kind, key) in _NGRAM_FLAGS.items()),
    click.option("--speculative-config", metavar="JSON", default=None, help="vLLM: speculative config."),
)  # fmt: skip


def take_speculation(options: dict[str, Any]) -> Speculation:
    """Pop the speculation flags from a command's options. Raises SpeculationStringError."""
    ngram = {
        target: value
        for flag, target in _NGRAM_FLAGS.items()
        if (value := options.pop(_name(flag))) is not None
    }
    return choose_speculation(
        options.pop("speculate"),
        PicolmOptions(draft=options.pop("draft"), tokens=options.pop("draft_tokens")),
        LlamaOptions(
            types=options.pop("spec_type"),
            model=options.pop("model_draft"),
            n_max=options.pop("draft_n_max"),
            n_min=options.pop("draft_n_min"),
            p_min=options.pop("draft_p_min"),
            ngram=ngram,
            lookup_static=options.pop("lookup_cache_static"),
            lookup_dynamic=options.pop("lookup_cache_dynamic"),
        ),
        options.pop("speculative_config"),
    )


_SAMPLING = (
    "max_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty",
    "frequency_penalty", "seed", "stop", "ignore_eos", "verify",
)  # fmt: skip
MODEL_OPTIONS = ("context_length", "threads", "gpu_layers", "memory", "batch", "ubatch", "kv_type", "dtype")


def take_sampling(options: dict[str, Any], *, logprobs: int | None = None) -> SamplingParams:
    """Pop the sampling flags from a command's options."""
    return SamplingParams(logprobs=logprobs, **{name: options.pop(name) for name in _SAMPLING})


def take_model_options(options: dict[str, Any]) -> dict[str, Any]:
    """Pop the model flags: keywords for `Engine.load`."""
    return {name: options.pop(name) for name in MODEL_OPTIONS}


def take_remember(options: dict[str, Any]) -> dict[str, bool]:
    """Pop --no-remember: a keyword for `Engine.load`."""
    return {"remember": not options.pop("no_remember")}
