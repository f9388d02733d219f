"""Command-line flags and what they mean for the engine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest

from foredraft.cli import COMMANDS, cli
from foredraft.cli.options import (
    model_options,
    remember_option,
    speculation_options,
    take_model_options,
    take_remember,
    take_speculation,
)
from foredraft.cli.sampling import sampling_options, take_sampling
from foredraft.config import ModelOptions, OtherPrograms
from foredraft.engine import options as engine_options
from foredraft.engine.options import EngineOptions
from foredraft.errors import SpeculationStringError
from foredraft.types import SamplingParams


def parse(*arguments: str) -> dict[str, Any]:
    """What the flags mean: the keys `speculation`, `sampling` and `model`."""

    @click.command()
    @sampling_options
    @speculation_options
    @model_options
    @remember_option
    def command(**options: Any) -> dict[str, Any]:
        found = {
            "speculation": str(take_speculation(options)),
            "sampling": take_sampling(options).params({}),
            "model": {**take_model_options(options), **take_remember(options)},
        }
        assert not options, f"flags that nobody takes: {options}"
        return found

    found: dict[str, Any] = command.main(list(arguments), standalone_mode=False)
    return found


# --- speculation ---------------------------------------------------------------------------------------


SPECULATION_FLAGS = [
    ("", "auto"),
    ("--speculate off", "off"),
    ("--speculate suffix:max=8;ngram-mod", "suffix:max=8;ngram-mod"),
    ("--draft d.gguf", "draft-model:model=d.gguf,max=4"),
    ("--draft d.gguf -d 7", "draft-model:model=d.gguf,max=7"),
    ("-md d.gguf", "draft-model:model=d.gguf,max=3"),
    ("--model-draft d.gguf", "draft-model:model=d.gguf,max=3"),
    ("--spec-draft-model d.gguf --spec-draft-n-max 9", "draft-model:model=d.gguf,max=9"),
    ("-md d.gguf --draft-max 9", "draft-model:model=d.gguf,max=9"),
    ("-md d.gguf --spec-draft-p-min 0.25", "draft-model:model=d.gguf,max=3,min-p=0.25"),
    ("-md d.gguf --draft-p-min 1", "draft-model:model=d.gguf,max=3,min-p=1.0"),
    ("-md d.gguf --spec-draft-n-min 2", "draft-model:model=d.gguf,max=3,min=2"),
    ("-md d.gguf --draft-min 2", "draft-model:model=d.gguf,max=3,min=2"),
    ("--spec-type none", "off"),
    ("--spec-type ngram-cache", "ngram-cache"),
    ("--spec-type ngram-cache -lcs s.bin -lcd d.bin", "ngram-cache:static=s.bin,dynamic=d.bin"),
    ("--spec-type ngram-cache --lookup-cache-static s.bin", "ngram-cache:static=s.bin"),
    ("--spec-type ngram-cache --lookup-cache-dynamic d.bin", "ngram-cache:dynamic=d.bin"),
    ("--spec-ngram-simple-size-n 8", "ngram-simple:n=8"),
    ("--spec-ngram-simple-size-m 8", "ngram-simple:m=8"),
    ("--spec-ngram-simple-min-hits 2", "ngram-simple:min-hits=2"),
    ("--spec-ngram-map-k-size-n 8", "ngram-map-k:n=8"),
    ("--spec-ngram-map-k-size-m 8", "ngram-map-k:m=8"),
    ("--spec-ngram-map-k-min-hits 2", "ngram-map-k:min-hits=2"),
    ("--spec-ngram-map-k4v-size-n 8", "ngram-map-k4v:n=8"),
    ("--spec-ngram-map-k4v-size-m 8", "ngram-map-k4v:m=8"),
    ("--spec-ngram-map-k4v-min-hits 2", "ngram-map-k4v:min-hits=2"),
    ("--spec-ngram-mod-n-match 16", "ngram-mod:n=16"),
    ("--spec-ngram-mod-n-min 0", "ngram-mod:min=0"),
    ("--spec-ngram-mod-n-max 32", "ngram-mod:max=32"),
]


@pytest.mark.parametrize(("line", "meaning"), SPECULATION_FLAGS)
def test_speculation_flags(line: str, meaning: str) -> None:
    assert parse(*line.split())["speculation"] == meaning


def test_vllms_flag() -> None:
    config = json.dumps({"method": "ngram", "num_speculative_tokens": 5})
    assert parse("--speculative-config", config)["speculation"] == "suffix:max=5,min=5,min-p=0"


def test_every_speculation_flag_is_covered_above() -> None:
    covered = " ".join(line for line, _ in SPECULATION_FLAGS)
    flags = {
        flag
        for parameter in command_parameters(speculation_options)
        for flag in parameter.opts
        if flag != "--speculative-config"
    }
    assert not {flag for flag in flags if f"{flag} " not in covered}


def command_parameters(decorator: Any) -> list[click.Parameter]:
    return list(click.command()(decorator(lambda **options: None)).params)


def test_mixed_dialects() -> None:
    with pytest.raises(SpeculationStringError, match="both configure"):
        parse("--speculate", "auto", "-md", "d.gguf")
    with pytest.raises(SpeculationStringError, match="both configure"):
        parse("-d", "4", "--spec-type", "ngram-mod")


@pytest.mark.parametrize(
    "line",
    ["--draft d.gguf -d 0", "-md d --draft-max 0", "-md d --draft-p-min 1.5", "--spec-ngram-mod-n-match x"],
)
def test_values_out_of_range(line: str) -> None:
    with pytest.raises(click.BadParameter):
        parse(*line.split())


# --- sampling and model --------------------------------------------------------------------------------


def test_defaults_are_those_of_the_library_but_for_what_a_chat_needs() -> None:
    parsed = parse()
    assert parsed["sampling"] == SamplingParams(temperature=0.7, top_p=0.9, stop_repetition=True)
    assert parsed["model"].pop("remember") is True
    usual = engine_options.model_options({})
    assert engine_options.model_options(parsed["model"]) == usual
    assert replace(usual.model, cache_dir=None, other_programs=OtherPrograms()) == ModelOptions()


def test_sampling_flags() -> None:
    line = (
        "-n 9 --temp 0.5 --top-k 40 --top-p 0.9 --min-p 0.1 --repetition-penalty 1.1 --presence-penalty 0.2 "
        "--frequency-penalty 0.3 -s 7 --stop END --stop . --ignore-eos --no-stop-repetition --verify block"
    )
    assert parse(*line.split())["sampling"] == SamplingParams(
        max_tokens=9,
        temperature=0.5,
        top_k=40,
        top_p=0.9,
        min_p=0.1,
        repetition_penalty=1.1,
        presence_penalty=0.2,
        frequency_penalty=0.3,
        seed=7,
        stop=("END", "."),
        ignore_eos=True,
        verify="block",
    )


def test_model_flags() -> None:
    line = "--ctx 512 -t 1 -ngl 0 --mem ram -b 64 -ub 32 --kv-type q8_0 --dtype bf16 --no-remember"
    options = parse(*line.split(), "--llama-library", "lib.so")["model"]
    assert options == {
        "context_length": 512,
        "mmproj": None,
        "rope_scaling": "auto",
        "rope_scale": 0.0,
        "rope_freq_base": 0.0,
        "yarn_orig_ctx": 0,
        "threads": 1,
        "gpu_layers": 0,
        "rpc": (),
        "llama_library": Path("lib.so"),
        "memory": "ram",
        "batch": 64,
        "ubatch": 32,
        "kv_type": "q8_0",
        "dtype": "bf16",
        "remember": False,
    }
    assert set(options) <= set(EngineOptions.__annotations__)


def test_who_may_be_told_not_to_remember() -> None:
    """The others generate nothing, or must be told to remember."""
    context = click.Context(cli)
    commands = {name: cli.get_command(context, name) for name in COMMANDS}
    told = {
        name
        for name, command in commands.items()
        if command is not None and "no_remember" in {parameter.name for parameter in command.params}
    }
    assert told == {"run", "chat", "serve"}


@pytest.mark.parametrize(
    "line",
    [
        "--ctx -1",
        "-t -1",
        "-ngl -2",
        "--mem disk",
        "-b 0",
        "-ub 0",
        "--temp hot",
        "--temp -1",
        "--verify luck",
    ],
)
def test_flags_out_of_range(line: str) -> None:
    with pytest.raises(click.BadParameter):
        parse(*line.split())


@pytest.mark.parametrize("decorator", [sampling_options, speculation_options, model_options, remember_option])
def test_every_flag_is_explained(decorator: Any) -> None:
    for parameter in command_parameters(decorator):
        assert isinstance(parameter, click.Option)
        assert parameter.help, parameter.opts
