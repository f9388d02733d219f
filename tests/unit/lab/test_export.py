"""Flags for other tools: they mean there what was measured here, and come back as the same setting."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

import click
import pytest

from foredraft.aliases import parse_vllm
from foredraft.bench.curves import find_curve
from foredraft.bench.trace import Trace, TraceSet
from foredraft.cli.options import speculation_options, take_speculation
from foredraft.config import Speculation, Stage
from foredraft.errors import ConfigError, SpeculationStringError
from foredraft.registry import create_drafter
from foredraft.testing import drafter_context
from lab import grid
from lab.export import COPIED, DRAFT_TOKENS, MATCHED, TOOLS, ranking, recommend

Options = Mapping[str, int | float | str]


def flags(text: str) -> list[str]:
    """The flags of a recommendation, as a shell reads them."""
    return shlex.split(text, comments=True)


def comments(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if line.startswith("#"))


def understood(arguments: list[str]) -> Speculation:
    """What our own command line, which takes llama.cpp's flags, makes of them."""
    found: list[Speculation] = []

    @click.command()
    @speculation_options
    def command(**options: Any) -> None:
        found.append(take_speculation(options))

    command.main(arguments, standalone_mode=False)
    return found[0]


# --- llama-server --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("ngram-simple", {}, "--spec-type ngram-simple"),
        (
            "ngram-simple",
            {"n": 8, "m": 16},
            "--spec-type ngram-simple --spec-ngram-simple-size-n 8 --spec-ngram-simple-size-m 16",
        ),
        (
            "ngram-map-k",
            {"n": 4, "m": 12},
            "--spec-type ngram-map-k --spec-ngram-map-k-size-n 4 --spec-ngram-map-k-size-m 12",
        ),
        (
            "ngram-map-k4v",
            {"min-hits": 2},
            "--spec-type ngram-map-k4v --spec-ngram-map-k4v-min-hits 2",
        ),
        (
            "ngram-mod",
            {"n": 16, "min": 0, "max": 32},
            (
                "--spec-type ngram-mod --spec-ngram-mod-n-match 16 --spec-ngram-mod-n-min 0 "
                "--spec-ngram-mod-n-max 32"
            ),
        ),
        ("ngram-cache", {}, "--spec-type ngram-cache"),
        (
            "ngram-cache",
            {"static": "my words.bin"},
            "--spec-type ngram-cache --lookup-cache-static 'my words.bin'",
        ),
        (
            "draft-model",
            {"model": "small.gguf", "max": 8, "min": 2, "min-p": 0.5},
            (
                "--spec-type draft-simple --spec-draft-model small.gguf --spec-draft-n-max 8 "
                "--spec-draft-n-min 2 --spec-draft-p-min 0.5"
            ),
        ),
    ],
)
def test_flags_of_llama_server(name: str, options: Options, expected: str) -> None:
    text = recommend([(name, options, 1.26)], "llama-server")
    assert text.splitlines()[-1] == expected
    stages = (Stage(name, {key: str(value) for key, value in options.items()}),)
    assert understood(flags(text)) == Speculation(adaptive=False, stages=stages)


def test_a_value_that_llama_server_always_has_needs_no_flag() -> None:
    text = recommend([("ngram-simple", {"n": "8", "min-hits": "1"}, 1.26)], "llama-server")
    assert flags(text) == ["--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "8"]


def test_the_defaults_are_those_of_the_drafters(monkeypatch: pytest.MonkeyPatch) -> None:
    read: dict[str, Mapping[str, int | float | str]] = {}

    def spy(name: str, options: Options, defaults: Options) -> None:
        read[name] = defaults
        raise SpeculationStringError("enough seen")

    for name, module in (("ngram-simple", "ngram_index"), ("draft-model", "draft_model")):
        monkeypatch.setattr(f"foredraft.drafters.{module}.read_options", spy)
        with pytest.raises(SpeculationStringError):
            create_drafter(Stage(name), drafter_context())
    assert (read["ngram-simple"]["n"], read["ngram-simple"]["m"]) == (MATCHED, COPIED)
    assert read["draft-model"]["max"] == DRAFT_TOKENS


def test_a_draft_model_gets_the_length_that_was_measured() -> None:
    """Here 16 tokens unless said otherwise, there 3."""
    text = recommend([("draft-model", {"model": "m.gguf"}, 1.5)], "llama-server")
    assert flags(text)[-2:] == ["--spec-draft-n-max", "16"]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("suffix", {}),
        ("recycle", {}),
        ("ngram-simple", {"min-hits": 2}),  # llama.cpp never reads it
        ("ngram-map-k", {"min-hits": 3}),
        ("ngram-cache", {"max": 4}),
        ("ngram-cache", {"n-max": 3}),
        ("draft-model", {"model": "m.gguf", "ctx": 512}),
    ],
)
def test_what_llama_server_does_not_have_is_passed_over(name: str, options: Options) -> None:
    text = recommend([(name, options, 1.4), ("ngram-mod", {"n": 16}, 1.2)], "llama-server")
    assert flags(text)[:2] == ["--spec-type", "ngram-mod"]
    assert "1.20 ×" in comments(text)
    assert name in comments(text)
    assert "1.40 ×" in comments(text)
    assert recommend([(name, options, 1.4)], "llama-server").startswith("#")
    assert flags(recommend([(name, options, 1.4)], "llama-server")) == []


# --- vLLM ----------------------------------------------------------------------------------------------


def vllm_config(text: str) -> dict[str, Any]:
    flag, value = flags(text)
    assert flag == "--speculative-config"
    config: dict[str, Any] = json.loads(value)
    return config


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        (
            "ngram-simple",
            {"n": 4, "m": 10},
            {
                "method": "ngram",
                "prompt_lookup_min": 4,
                "prompt_lookup_max": 4,
                "num_speculative_tokens": 10,
            },
        ),
        (
            "ngram-simple",
            {},
            {
                "method": "ngram",
                "prompt_lookup_min": 12,
                "prompt_lookup_max": 12,
                "num_speculative_tokens": 48,
            },
        ),
        (
            "suffix",
            {"min": 3, "max": 8, "min-p": 0},
            {
                "method": "ngram",
                "prompt_lookup_min": 3,
                "prompt_lookup_max": 16,
                "num_speculative_tokens": 8,
            },
        ),
        (
            "suffix",
            {"max": 24, "min-p": 0.2},
            {
                "method": "suffix",
                "num_speculative_tokens": 24,
                "suffix_decoding_min_token_prob": 0.2,
            },
        ),
        (
            "draft-model",
            {"model": "org/small", "max": 5},
            {"method": "draft_model", "model": "org/small", "num_speculative_tokens": 5},
        ),
    ],
)
def test_config_of_vllm(name: str, options: Options, expected: dict[str, Any]) -> None:
    text = recommend([(name, options, 1.7)], "vllm")
    assert vllm_config(text) == expected
    assert "1.70 ×" in comments(text)


def test_a_suffix_drafter_says_what_it_leaves_to_its_defaults() -> None:
    """Ours and vLLM's differ: 63 tokens and 0.3 here, 24 and 0.1 there."""
    config = vllm_config(recommend([("suffix", {}, 1.7)], "vllm"))
    assert config == {
        "method": "suffix",
        "num_speculative_tokens": 63,
        "suffix_decoding_min_token_prob": 0.3,
    }


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("suffix", {"max": 8, "min-p": 0.5}),
        ("suffix", {"min": 3, "max": 8, "min-p": 0}),
        ("draft-model", {"model": "m.gguf", "max": 4}),
    ],
)
def test_a_config_of_vllm_is_understood_here_as_it_was_meant(name: str, options: Options) -> None:
    config = json.dumps(vllm_config(recommend([(name, options, 1.7)], "vllm")))
    stages = (Stage(name, {key: str(value) for key, value in options.items()}),)
    (understood,) = parse_vllm(config).stages
    assert understood.name == stages[0].name
    assert dict(understood.options) == dict(stages[0].options)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ngram-mod", {}),
        ("ngram-map-k", {}),
        ("ngram-map-k4v", {}),
        ("ngram-cache", {}),
        ("ngram-simple", {"min-hits": 2}),
        ("suffix", {"candidates": 4}),
        ("suffix", {"min": 3, "min-p": 0.3}),
        ("draft-model", {"model": "m.gguf", "min-p": 0.5}),
        ("draft-model", {"model": "m.gguf", "min": 2}),
    ],
)
def test_what_vllm_does_not_have_is_passed_over(name: str, options: Options) -> None:
    text = recommend([(name, options, 1.4), ("suffix", {}, 1.2)], "vllm")
    assert vllm_config(text)["method"] == "suffix"
    assert name in comments(text)


def test_another_programs_costs_are_its_own() -> None:
    assert "own cost curve" in comments(recommend([("suffix", {}, 1.2)], "vllm"))
    assert "own cost curve" not in comments(recommend([("ngram-simple", {}, 1.2)], "llama-server"))


# --- either --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tool", TOOLS)
def test_when_nothing_pays(tool: str) -> None:
    text = recommend([("ngram-simple", {}, 0.93), ("suffix", {}, 0.9)], tool)
    assert flags(text) == []
    assert "speculation does not pay on this curve: run without" in comments(text).lower()
    assert "0.93 ×" in comments(text)


def test_when_only_what_the_tool_does_not_have_pays() -> None:
    text = recommend([("suffix", {}, 1.3), ("ngram-simple", {}, 0.95)], "llama-server")
    assert flags(text) == []
    assert "run without" in comments(text)
    assert "suffix" in comments(text)


@pytest.mark.parametrize("tool", TOOLS)
def test_nothing_was_ranked(tool: str) -> None:
    text = recommend([], tool)
    assert flags(text) == []
    assert comments(text) == text.strip()


def test_the_order_given_is_the_ranking() -> None:
    text = recommend([("ngram-mod", {}, 1.5), ("ngram-simple", {}, 1.1)], "llama-server")
    assert flags(text) == ["--spec-type", "ngram-mod"]
    assert text.splitlines()[0].startswith("# ")
    assert "1.50 ×" in text.splitlines()[0]


def test_another_tool() -> None:
    with pytest.raises(ConfigError, match="ollama") as caught:
        recommend([("suffix", {}, 1.2)], "ollama")
    assert "llama-server, vllm" in str(caught.value)


def test_static_settings_are_ranked_by_drafter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of several drafters are left out: other tools combine them in ways of their own."""
    few = ("ngram-simple:n=4,m=1", "suffix;ngram-mod", "suffix:max=8")
    monkeypatch.setattr(grid, "static_settings", lambda: few)
    passage = tuple(range(60))
    traces = TraceSet("made up", 64, "h", (), [Trace("copy", "c", passage, passage)])
    found = ranking(traces, find_curve("flat"))
    assert [(name, dict(options)) for name, options, _ in found] == [
        ("suffix", {"max": "8"}),
        ("ngram-simple", {"n": "4", "m": "1"}),
    ]
    assert found[0][2] > found[1][2] > 1
