"""The names of other tools: what each means here, and that nothing is dropped without a word."""

from __future__ import annotations

import json

import pytest

from foredraft.aliases import (
    LLAMA_HEAD_TYPES,
    LLAMA_NGRAM_TYPES,
    LlamaOptions,
    PicolmOptions,
    choose_speculation,
    parse_vllm,
)
from foredraft.errors import SpeculationStringError
from foredraft.registry import create_drafter
from foredraft.testing import FakeModel, drafter_context


def llama(**flags: object) -> str:
    return str(choose_speculation(None, None, LlamaOptions(**flags)))  # type: ignore[arg-type]


def vllm(**config: object) -> str:
    return str(parse_vllm(json.dumps(config)))


# --- no alias, and picolm ------------------------------------------------------------------------------


def test_nothing_given_is_auto() -> None:
    assert str(choose_speculation(None)) == "auto"
    assert str(choose_speculation("suffix:max=3")) == "suffix:max=3"


def test_picolm() -> None:
    assert str(choose_speculation(None, PicolmOptions(draft="m.gguf"))) == "draft-model:model=m.gguf,max=4"
    chosen = choose_speculation(None, PicolmOptions(draft="m.gguf", tokens=7))
    assert str(chosen) == "draft-model:model=m.gguf,max=7"


def test_picolms_length_needs_a_draft_model() -> None:
    with pytest.raises(SpeculationStringError, match="--draft FILE"):
        choose_speculation(None, PicolmOptions(tokens=4))


# --- llama.cpp -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "meaning"),
    [
        ({"types": "none"}, "off"),
        ({"types": "ngram-simple"}, "ngram-simple"),
        ({"types": "ngram-map-k, ngram-mod"}, "ngram-map-k;ngram-mod"),
        ({"types": "ngram-map-k4v"}, "ngram-map-k4v"),
        ({"types": "ngram-cache"}, "ngram-cache"),
        ({"model": "d.gguf"}, "draft-model:model=d.gguf,max=3"),
        ({"types": "draft-simple", "model": "d.gguf"}, "draft-model:model=d.gguf,max=3"),
        ({"types": "ngram-mod", "model": "d.gguf"}, "ngram-mod;draft-model:model=d.gguf,max=3"),
        ({"model": "d.gguf", "n_max": 8, "p_min": 0.5}, "draft-model:model=d.gguf,max=8,min-p=0.5"),
        ({"types": "draft-mtp"}, "heads:max=3"),
        ({"types": "draft-mtp,ngram-mod", "n_max": 5}, "heads:max=5;ngram-mod"),
        ({"types": "draft-eagle3", "model": "h.gguf"}, "heads:model=h.gguf,max=3"),
        ({"types": "draft-eagle3", "model": "h.gguf", "p_min": 0.4}, "heads:model=h.gguf,max=3,min-p=0.4"),
        ({"types": "draft-dflash", "model": "h.gguf", "n_max": 15}, "heads:model=h.gguf,max=15"),
        ({"types": "draft-dspark", "model": "h.gguf"}, "heads:model=h.gguf,max=3"),
        ({"model": "h.gguf", "is_head": True, "n_max": 2}, "heads:model=h.gguf,max=2"),
        ({"types": "ngram-mod", "model": "h.gguf", "is_head": True}, "ngram-mod;heads:model=h.gguf,max=3"),
        ({"types": "draft-simple", "model": "h.gguf", "is_head": True}, "draft-model:model=h.gguf,max=3"),
        ({"types": "ngram-cache", "lookup_static": "s"}, "ngram-cache:static=s"),
        ({"types": "ngram-cache", "lookup_dynamic": "d"}, "ngram-cache:dynamic=d"),
        ({"ngram": {("ngram-simple", "n"): 8, ("ngram-simple", "m"): 16}}, "ngram-simple:n=8,m=16"),
        ({"ngram": {("ngram-mod", "n"): 16, ("ngram-map-k", "n"): 4}}, "ngram-map-k:n=4;ngram-mod:n=16"),
        (
            {"types": "ngram-map-k", "ngram": {("ngram-map-k", "min-hits"): 2}},
            "ngram-map-k:min-hits=2",
        ),
    ],
)
def test_llama(flags: dict[str, object], meaning: str) -> None:
    assert llama(**flags) == meaning


@pytest.mark.parametrize("name", LLAMA_NGRAM_TYPES)
def test_every_ngram_type_is_a_drafter_here(name: str) -> None:
    (stage,) = choose_speculation(None, None, LlamaOptions(types=name)).stages
    drafter = create_drafter(stage, drafter_context())
    assert drafter.name == name
    drafter.close()


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"types": "ngram-complex"}, "no --spec-type 'ngram-complex'"),
        ({"types": "draft-simple"}, "needs a draft model"),
        ({"n_max": 4}, "no type of speculation is turned on"),
        ({"p_min": 0.5}, "no type of speculation is turned on"),
        ({"lookup_static": "s"}, "no type of speculation is turned on"),
        ({"types": "draft-mtp", "n_min": 2}, "--spec-draft-n-min has no counterpart for draft-mtp"),
        ({"types": "draft-mtp,draft-eagle3"}, "names two models that draft"),
        ({"types": "draft-dflash,draft-dspark"}, "names two models that draft"),
        ({"types": "draft-mtp,draft-simple", "model": "m.gguf"}, "names two models that draft"),
    ],
)
def test_llama_flags_that_cannot_be_meant(flags: dict[str, object], says: str) -> None:
    with pytest.raises(SpeculationStringError, match=says) as caught:
        llama(**flags)
    assert caught.value.hint


def test_an_unknown_type_lists_the_valid_ones() -> None:
    with pytest.raises(SpeculationStringError) as caught:
        llama(types="nonesuch")
    assert caught.value.hint is not None
    for name in ("none", "draft-simple", *LLAMA_HEAD_TYPES, *LLAMA_NGRAM_TYPES):
        assert name in caught.value.hint


@pytest.mark.parametrize(
    "flags",
    [
        {"types": "ngram-simple", "n_max": 4},
        {"types": "ngram-simple", "n_min": 1},
        {"types": "ngram-simple", "p_min": 0.5},
        {"types": "ngram-simple", "lookup_static": "s"},
        {"types": "ngram-simple", "lookup_dynamic": "d"},
        {"types": "ngram-simple", "ngram": {("ngram-mod", "n"): 4}},
        {"model": "d.gguf", "ngram": {("ngram-mod", "n"): 4}},
        {"types": "none", "ngram": {("ngram-mod", "n"): 4}},
        {"types": "none", "n_max": 4},
    ],
)
def test_llama_flags_of_a_type_that_is_off_are_refused(flags: dict[str, object]) -> None:
    with pytest.raises(SpeculationStringError):
        llama(**flags)


def test_a_type_named_twice_is_one_drafter_or_an_error() -> None:
    try:
        meaning = llama(types="ngram-simple,ngram-simple")
    except SpeculationStringError:
        return
    assert meaning == "ngram-simple"


def test_the_shortest_draft_of_llama_is_an_option_of_the_drafter() -> None:
    (stage,) = choose_speculation(None, None, LlamaOptions(model="d.gguf", n_min=1)).stages
    create_drafter(stage, drafter_context()).close()


# --- vLLM ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "meaning"),
    [
        ({"method": "ngram", "num_speculative_tokens": 5}, "suffix:max=5,min=5,min-p=0"),
        (
            {"model": "[ngram]", "num_speculative_tokens": 5, "prompt_lookup_max": 4},
            "suffix:max=5,min=4,min-p=0",
        ),
        ({"model": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4}, "suffix:min=2,min-p=0"),
        ({"method": "suffix"}, "suffix"),
        ({"method": "suffix", "num_speculative_tokens": 6}, "suffix:max=6"),
        ({"method": "suffix", "suffix_decoding_max_tree_depth": 24}, "suffix:max=24"),
        ({"method": "suffix", "suffix_decoding_min_token_prob": 0.5}, "suffix:min-p=0.5"),
        ({"model": "m.gguf"}, "draft-model:model=m.gguf"),
        ({"model": "m.gguf", "num_speculative_tokens": 3}, "draft-model:model=m.gguf,max=3"),
        ({"method": "draft_model", "model": "m.gguf"}, "draft-model:model=m.gguf"),
        ({"method": "mtp", "num_speculative_tokens": 1}, "heads:max=1"),
        ({"method": "deepseek_mtp"}, "heads"),
        ({"method": "eagle3", "model": "h", "num_speculative_tokens": 3}, "heads:model=h,max=3"),
        ({"method": "dflash", "model": "h", "num_speculative_tokens": 15}, "heads:model=h,max=15"),
        ({"method": "dspark", "model": "h", "num_speculative_tokens": 7}, "heads:model=h,max=7"),
    ],
)
def test_vllm(config: dict[str, object], meaning: str) -> None:
    assert vllm(**config) == meaning
    (stage,) = parse_vllm(json.dumps(config)).stages
    create_drafter(stage, drafter_context(FakeModel(features=("next",)))).close()


@pytest.mark.parametrize("text", ["", "{", "not JSON", "[]", '"ngram"', "3"])
def test_vllm_json_that_cannot_be_read(text: str) -> None:
    with pytest.raises(SpeculationStringError, match="--speculative-config"):
        parse_vllm(text)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"metod": "ngram"}, "no key 'metod'"),
        ({"method": "eagle", "model": "m"}, "method 'eagle'"),
        ({"method": "eagle3", "model": 7}, "method 'eagle3'"),
        ({"method": "medusa"}, "method 'medusa'"),
        ({"method": "draft_model"}, "method 'draft_model'"),
        ({}, "method"),
        ({"model": 7}, "method"),
    ],
)
def test_vllm_settings_without_a_counterpart(config: dict[str, object], says: str) -> None:
    with pytest.raises(SpeculationStringError, match=says) as caught:
        vllm(**config)
    assert caught.value.hint


@pytest.mark.parametrize(
    "config",
    [
        {"model": "m.gguf", "draft_tensor_parallel_size": 4},
        {"method": "suffix", "prompt_lookup_min": 2},
        {"method": "suffix", "model": "m.gguf"},
        {"method": "mtp", "prompt_lookup_min": 2},
        {"method": "ngram", "suffix_decoding_max_tree_depth": 4},
        {"model": "m.gguf", "prompt_lookup_max": 4},
    ],
)
def test_vllm_settings_that_would_do_nothing_are_refused(config: dict[str, object]) -> None:
    with pytest.raises(SpeculationStringError):
        vllm(**config)


# --- mixing --------------------------------------------------------------------------------------------

PICOLM = PicolmOptions(draft="d.gguf")
LLAMA = LlamaOptions(types="ngram-mod")
VLLM = '{"method": "suffix"}'


@pytest.mark.parametrize(
    ("speculate", "picolm", "of_llama", "of_vllm", "names"),
    [
        ("auto", PICOLM, None, None, ("--speculate", "--draft/-d")),
        ("off", None, LLAMA, None, ("--speculate", "--spec-…/-md")),
        ("auto", None, None, VLLM, ("--speculate", "--speculative-config")),
        (None, PICOLM, LLAMA, None, ("--draft/-d", "--spec-…/-md")),
        (None, PICOLM, None, VLLM, ("--draft/-d", "--speculative-config")),
        (None, None, LLAMA, VLLM, ("--spec-…/-md", "--speculative-config")),
    ],
)
def test_two_dialects_at_once_are_refused(
    speculate: str | None,
    picolm: PicolmOptions | None,
    of_llama: LlamaOptions | None,
    of_vllm: str | None,
    names: tuple[str, str],
) -> None:
    with pytest.raises(SpeculationStringError, match="both configure speculation") as caught:
        choose_speculation(speculate, picolm, of_llama, of_vllm)
    assert all(name in caught.value.message for name in names)
