"""Options that several commands share, and their translation for the engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, get_args

import click

from foredraft.aliases import LlamaOptions, PicolmOptions, choose_speculation
from foredraft.cli.completion import complete_files, complete_models, complete_speculation
from foredraft.cli.head_files import is_head
from foredraft.cli.help import COMMON, LOADING, OTHER, PEERS, option
from foredraft.cli.values import Number, Whole
from foredraft.config import MOST_THREADS, Dtype, Speculation
from foredraft.errors import ConfigError
from foredraft.library.adapter_files import files_of, parse_adapter

LORA = "lora"
"""The name of the adapter that --lora makes."""

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


def option_set(*decorators: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """Combine several options into one decorator."""

    def apply(command: Command) -> Command:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return apply


def _name(flag: str) -> str:
    return flag.lstrip("-").replace("-", "_")


llama_library_option = option(
    "--llama-library", group=LOADING, metavar="FILE", type=click.Path(path_type=Path), default=None,
    show_default="the packaged one",
    help="The llama.cpp library that runs GGUF files, such as one that was built for a GPU.",
)  # fmt: skip
"""A command passes it on to what reads or loads the first file: there is one library for a process."""

model_options = option_set(
    option("--ctx", "context_length", group=LOADING, type=Whole(0), default=0,
           show_default="the trained context length, as far as its KV cache fits in memory",
           help="Context length in tokens, prompt and answer together."),
    option("--threads", "-t", group=LOADING, type=Whole(0, MOST_THREADS), default=0,
           show_default="physical cores",
           help="CPU threads. By default GGUF leaves cores to other busy processes."),
    option("--gpu-layers", "-ngl", group=LOADING, type=Whole(-1), default=-1,
           show_default="all; safetensors: as many as fit",
           help="Layers to put on the GPU, if there is one."),
    llama_library_option,
    option("--rpc", group=LOADING, multiple=True, metavar="HOST:PORT,…",
           help="Other machines that compute layers of a GGUF file: each runs 'foredraft rpc-server'. "
                "--gpu-layers says how many layers; all by default."),
    option("--mmproj", group=LOADING, metavar="FILE|none", default=None,
           show_default="the one beside the model",
           help="The model's vision file (projector), mmproj-….gguf; none: text only."),
    option("--mem", "memory", group=LOADING, type=click.Choice(["mmap", "ram"]), default="mmap",
           show_default=True, help="Page the model in on demand (mmap), or read it into memory (ram)."),
    option("--batch", "-b", group=LOADING, type=Whole(1), default=512, show_default=True,
           help="Maximum tokens in one forward."),
    option("--ubatch", "-ub", group=LOADING, type=Whole(1), default=512, show_default=True,
           help="Maximum tokens computed at once."),
    option("--kv-type", group=LOADING, default="auto", show_default=True, metavar="TYPE|K/V",
           help="Type of the KV cache; auto keeps the output exact on a CPU."),
    option("--dtype", group=LOADING, type=click.Choice(get_args(Dtype)), default="auto", show_default=True,
           help="Number format to compute safetensors in; not for GGUF."),
    option("--rope-scaling", group=LOADING, type=click.Choice(["auto", "none", "linear", "yarn"]),
           default="auto", show_default="the file's",
           help="Scale positions, for a context that the model was not trained for (--ctx): yarn is best."),
    option("--rope-scale", group=LOADING, type=Number(0), default=0.0,
           show_default="follows from --ctx", help="How many times longer than trained."),
    option("--rope-freq-base", group=LOADING, type=Number(0), default=0.0, show_default="the file's",
           help="Base of the rotary frequencies."),
    option("--yarn-orig-ctx", group=LOADING, type=Whole(0), default=0,
           show_default="what the model was trained for", help="Context length that YaRN scales from."),
)  # fmt: skip

lora_option = option(
    "--lora", group=LOADING, multiple=True, metavar="FILE[:SCALE]", shell_complete=complete_files,
    help="A LoRA adapter: a GGUF file, or for a folder of safetensors a folder in PEFT's format. Repeatable: "
    "all are applied together.",
)  # fmt: skip
"""For commands whose texts are all computed with it; see `take_lora`."""

remember_option = option(
    "--no-remember", group=OTHER, is_flag=True, help="Do not read or write the store of past outputs."
)

speculation_options = option_set(
    option("--speculate", group=COMMON, metavar="SPEC", default=None, show_default="auto",
           shell_complete=complete_speculation,
           help="auto, off, or drafters: 'suffix;draft-model:model=FILE,max=8'."),
    option("--draft", group=PEERS, metavar="FILE", default=None, shell_complete=complete_models,
           help="picolm: draft model."),
    option("-d", "draft_tokens", group=PEERS, metavar="K", type=Whole(1), default=None,
           help="picolm: tokens it drafts each round."),
    option("--spec-type", group=PEERS, metavar="A,B", default=None, help="llama.cpp: types of speculation."),
    option("--spec-draft-model", "--model-draft", "-md", "model_draft", group=PEERS, metavar="FILE",
           default=None, shell_complete=complete_models, help="llama.cpp: draft model, or head."),
    option("--spec-draft-n-max", "--draft-max", "draft_n_max", group=PEERS, type=Whole(1), default=None,
           help="llama.cpp: maximum tokens to draft."),
    option("--spec-draft-n-min", "--draft-min", "draft_n_min", group=PEERS, type=Whole(0), default=None,
           help="llama.cpp: discard drafts shorter than this."),
    option("--spec-draft-p-min", "--draft-p-min", "draft_p_min", group=PEERS, type=Number(0, 1),
           default=None, help="llama.cpp: stop drafting below this probability."),
    option("--lookup-cache-static", "-lcs", group=PEERS, metavar="FILE", default=None,
           shell_complete=complete_files, help="llama.cpp: static file of ngram-cache."),
    option("--lookup-cache-dynamic", "-lcd", group=PEERS, metavar="FILE", default=None,
           shell_complete=complete_files, help="llama.cpp: dynamic file of ngram-cache."),
    *(option(flag, _name(flag), group=PEERS, type=Whole(0), default=None,
             help=f"llama.cpp: {key} of {kind}.") for flag, (kind, key) in _NGRAM_FLAGS.items()),
    option("--speculative-config", group=PEERS, metavar="JSON", default=None,
           help="vLLM: speculative config."),
)  # fmt: skip

model_option = option(
    "--model", "-m", "named", group=COMMON, metavar="MODEL", default=None, shell_complete=complete_models,
    show_default="the model that came with Foredraft",
    help="A GGUF file, a folder of safetensors, or the name of a model ('foredraft models list').",
)  # fmt: skip
"""For commands that also take the model as an argument; see `take_model`."""


def take_model(options: dict[str, Any], word: str | None) -> str | None:
    """Pop -m. Raises ConfigError if an argument names a model, too."""
    named: str | None = options.pop("named")
    if named is not None and word is not None:
        raise ConfigError(
            f"Two models are named: {word} and {named}.", hint="Name one, with -m or as an argument."
        )
    return named if word is None else word


def take_speculation(options: dict[str, Any]) -> Speculation:
    """Pop the speculation flags from a command's options. Raises SpeculationStringError."""
    ngram = {
        target: value
        for flag, target in _NGRAM_FLAGS.items()
        if (value := options.pop(_name(flag))) is not None
    }
    model = options.pop("model_draft")
    return choose_speculation(
        options.pop("speculate"),
        PicolmOptions(draft=options.pop("draft"), tokens=options.pop("draft_tokens")),
        LlamaOptions(
            types=options.pop("spec_type"),
            model=model,
            is_head=model is not None and is_head(model),
            n_max=options.pop("draft_n_max"),
            n_min=options.pop("draft_n_min"),
            p_min=options.pop("draft_p_min"),
            ngram=ngram,
            lookup_static=options.pop("lookup_cache_static"),
            lookup_dynamic=options.pop("lookup_cache_dynamic"),
        ),
        options.pop("speculative_config"),
    )


MODEL_OPTIONS = (
    *(
        "context_length",
        "threads",
        "gpu_layers",
        "llama_library",
        "rpc",
        "mmproj",
        "memory",
        "batch",
        "ubatch",
        "kv_type",
        "dtype",
        "rope_scaling",
        "rope_scale",
        "rope_freq_base",
        "yarn_orig_ctx",
    ),
)


def take_model_options(options: dict[str, Any]) -> dict[str, Any]:
    """Pop the model flags; returns keyword arguments for `Engine.load`."""
    return {name: options.pop(name) for name in MODEL_OPTIONS}


def take_lora(options: dict[str, Any]) -> dict[str, Any]:
    """Pop --lora; returns keyword arguments for `Engine.load`: one adapter of all files, for all requests.
    Raises ConfigError, ModelNotFoundError.
    """
    files: tuple[str, ...] = options.pop("lora")
    if not files:
        return {}
    for file in files:
        files_of(parse_adapter(file)[0])
    return {"adapters": {LORA: files}, "adapter": LORA}


def take_remember(options: dict[str, Any]) -> dict[str, bool]:
    """Pop --no-remember; returns keyword arguments for `Engine.load`."""
    return {"remember": not options.pop("no_remember")}
