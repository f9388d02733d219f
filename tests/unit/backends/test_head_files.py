"""Files that are no heads of a model, or damaged ones, are refused in words, and end no process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import gguf
import pytest

import gguf_factory
import gguf_heads
import gguf_hybrids
import gguf_windows
from foredraft.backends.llamacpp import BACKEND, trial
from foredraft.backends.llamacpp.gguf_file import read_gguf
from foredraft.config import ModelOptions
from foredraft.errors import (
    CapacityError,
    ConfigError,
    ModelError,
    ModelFormatError,
    ModelNotFoundError,
    UnsupportedModelError,
)
from foredraft.isolation.pool import ChildPool
from foredraft.types import HeadRows, Rows
from gguf_loads import LOADED
from gguf_mutations import setting

VOCABULARY, LAYERS = 384, 4
UINT32, ARRAY, BOOL = gguf.GGUFValueType.UINT32, gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.BOOL
FLOAT32, STRING = gguf.GGUFValueType.FLOAT32, gguf.GGUFValueType.STRING


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gguf")


@pytest.fixture(scope="module")
def target(folder: Path) -> Path:
    return gguf_factory.tiny_llama(folder / "target.gguf", vocab=VOCABULARY, layers=LAYERS)


def refused(target: Path, head: Path, error: type[ModelError], words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        BACKEND.features_for(target, head)
    assert caught.value.hint or error is ModelNotFoundError


def test_a_head_that_fits(folder: Path, target: Path) -> None:
    head = gguf_heads.tiny_eagle3(folder / "fits.gguf", vocab=VOCABULARY, layers=(3, 0, 1))
    assert BACKEND.features_for(target, head) == ("layer:3", "layer:0", "layer:1")


def test_headers_are_read_by_the_library_that_the_model_is_loaded_with(folder: Path, target: Path) -> None:
    with pytest.raises(ConfigError, match=r"no llama.cpp library"):
        BACKEND.features_for(target, None, ModelOptions(llama_library=folder / "libllama.so"))


def test_what_is_no_head(folder: Path, target: Path) -> None:
    refused(target, folder / "missing.gguf", ModelNotFoundError, "no file")
    (folder / "target-eagle3").mkdir()
    refused(target, folder / "target-eagle3", UnsupportedModelError, "is a folder.* is a GGUF file")
    refused(target, gguf_factory.not_gguf(folder / "page.gguf"), ModelFormatError, "not a GGUF")
    whole = gguf_heads.tiny_eagle3(folder / "whole.gguf", vocab=VOCABULARY)
    part = gguf_factory.truncated(whole, folder / "part.gguf")
    refused(target, part, ModelFormatError, "truncated|damaged")
    refused(target, target, UnsupportedModelError, "not a trained head")
    sharing = gguf_factory.unknown_architecture(folder / "sharing.gguf", architecture="gemma4-assistant")
    refused(target, sharing, UnsupportedModelError, "Gemma 4 assistant")


def test_heads_of_other_models(folder: Path, target: Path) -> None:
    wide = gguf_heads.tiny_eagle3(folder / "wide.gguf", vocab=VOCABULARY, embd=128)
    refused(target, wide, UnsupportedModelError, "another model: it is for hidden states of 128")
    other = gguf_heads.tiny_eagle3(folder / "other.gguf", vocab=VOCABULARY + 8)
    refused(target, other, UnsupportedModelError, "another model: it is for 392 tokens")
    deep = gguf_heads.tiny_eagle3(folder / "deep.gguf", vocab=VOCABULARY, layers=(1, 2, LAYERS))
    refused(target, deep, UnsupportedModelError, f"reads layer:{LAYERS} was made for another model")
    spelt = gguf_heads.tiny_eagle3(
        folder / "spelt.gguf", vocab=VOCABULARY, edit=setting("tokenizer.ggml.pre", "llama3", STRING).edit
    )
    refused(target, spelt, UnsupportedModelError, "the tokenizer llama3")


def test_other_tokens_of_the_same_number(folder: Path, target: Path) -> None:
    texts = [f"token {i}" for i in range(VOCABULARY)]
    head = gguf_heads.tiny_eagle3(
        folder / "texts.gguf", vocab=VOCABULARY, edit=setting("tokenizer.ggml.tokens", texts, ARRAY).edit
    )
    watch = BACKEND.features_for(target, head)
    model = BACKEND.load(target, ModelOptions(threads=1, gpu_layers=0, probe=False, watch=watch))
    with pytest.raises((UnsupportedModelError, ModelFormatError)):
        model.load_head(head, sequences=1)
    model.close()


def test_targets_that_return_no_hidden_states(folder: Path) -> None:
    gemma = gguf_windows.tiny_gemma3(folder / "gemma.gguf", vocab=VOCABULARY, layers=LAYERS)
    head = gguf_heads.tiny_eagle3(folder / "for-gemma.gguf", vocab=VOCABULARY)
    refused(gemma, head, UnsupportedModelError, "gemma3")


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ([-1, 3], "among"),
        ([3, VOCABULARY], "among"),
        ([3, 2**40], "among"),
        (range(VOCABULARY + 1), "no list"),
    ],
)
def test_tokens_that_are_none(folder: Path, target: Path, chosen: list[int], words: str) -> None:
    head = gguf_heads.tiny_eagle3(folder / "chosen.gguf", vocab=VOCABULARY, chosen=chosen)
    refused(target, head, ModelFormatError, words)


def test_a_head_that_shares_what_its_target_does_not_have(folder: Path) -> None:
    narrow = gguf_factory.tiny_llama(folder / "narrow.gguf", vocab=VOCABULARY, layers=LAYERS, embd=32)

    def for_narrow(writer: gguf.GGUFWriter) -> None:
        setting("eagle3.target_hidden_size", 32, UINT32).edit(writer)

    head = gguf_heads.tiny_eagle3(folder / "shares.gguf", vocab=VOCABULARY, tied=True, edit=for_narrow)
    refused(narrow, head, ModelFormatError, "has no|has the shape")


def test_more_sequences_than_the_model_has(folder: Path, target: Path) -> None:
    head = gguf_heads.tiny_eagle3(folder / "many.gguf", vocab=VOCABULARY)
    watch = BACKEND.features_for(target, head)
    model = BACKEND.load(target, ModelOptions(threads=1, gpu_layers=0, probe=False, sequences=2, watch=watch))
    for sequences in (0, 3):
        with pytest.raises(CapacityError):
            model.load_head(head, sequences=sequences)
    model.close()


def mutated() -> Iterator[tuple[str, Callable[[gguf.GGUFWriter], None]]]:
    for key, kind, values in (
        ("eagle3.block_count", UINT32, (0, 2, 513)),
        ("eagle3.embedding_length", UINT32, (0, 32, 63, 2**31)),
        ("eagle3.attention.head_count", UINT32, (0, 3, 5, 64, 2**31)),
        ("eagle3.attention.head_count_kv", UINT32, (0, 1, 3, 8, 2**31)),
        ("eagle3.attention.key_length", UINT32, (0, 8, 17)),
        ("eagle3.attention.value_length", UINT32, (0, 8, 17)),
        ("eagle3.attention.layer_norm_rms_epsilon", FLOAT32, (float("nan"), -1.0)),
        ("eagle3.feed_forward_length", UINT32, (0, 64, 2**31)),
        ("eagle3.rope.dimension_count", UINT32, (0, 3, 1024)),
        ("eagle3.target_layers", ARRAY, ([1, 2], [1, 1, 1], [-1, 0, 1], [2**31 - 1, 0, 1], ["a", "b", "c"])),
        ("eagle3.target_layers", UINT32, (3,)),
        ("eagle3.target_hidden_size", UINT32, (0, 63, 2**31)),
        ("eagle3.norm_before_fc", BOOL, (True,)),
        ("eagle3.norm_before_residual", BOOL, (True,)),
        ("eagle3.context_length", UINT32, (0, 1)),
        ("eagle3.vocab_size", UINT32, (0, 5)),
        ("foredraft.window", UINT32, (2, 2**31)),
        ("foredraft.window", STRING, ("1",)),
        ("tokenizer.ggml.tokens", ARRAY, (["a"] * VOCABULARY, ["a"] * 3)),
    ):
        for value in values:
            made = setting(key, value, kind)
            yield made.name, made.edit
    for key in ("eagle3.target_layers", "eagle3.target_hidden_size", "eagle3.attention.head_count"):
        yield f"no {key}", lambda writer, key=key: writer.kv_data[0].pop(key)  # type: ignore[misc]


def test_no_damaged_head_ends_a_process(folder: Path, target: Path) -> None:
    ends: dict[str, str] = {}
    with ChildPool(size=1, memory=trial.MEMORY) as children:
        for number, (name, edit) in enumerate(mutated()):
            head = gguf_heads.tiny_eagle3(
                folder / f"mutated-{number}.gguf", vocab=VOCABULARY, chosen=range(50, 200), edit=edit
            )
            found = children.call("gguf_loads:load_head", str(target), str(head), seconds=120.0)
            ends[name] = str(found)
            head.unlink()
    loaded = {name for name, end in ends.items() if end == LOADED}
    assert len(ends) > 40
    assert len(loaded) < len(ends) / 3, loaded
    assert not [name for name, end in ends.items() if end != LOADED and not end.startswith("2: ")], ends


def test_unsupported_targets_end_no_process(folder: Path) -> None:
    gemma = gguf_windows.tiny_gemma3(folder / "gemma-child.gguf", vocab=VOCABULARY, layers=LAYERS)
    with ChildPool(size=1, memory=trial.MEMORY) as children:
        for watch in (["layer:1"], ["next"]):
            end = children.call("gguf_loads:load_watched", str(gemma), watch, seconds=120.0)
            assert str(end).startswith("2: ")


def test_a_head_that_ends_a_process_is_refused(
    folder: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = gguf_heads.tiny_eagle3(folder / "ends.gguf", vocab=VOCABULARY)
    watch = BACKEND.features_for(target, head)
    model = BACKEND.load(target, ModelOptions(threads=1, gpu_layers=0, probe=False, watch=watch))
    monkeypatch.setattr(trial, "_HEAD_FUNCTION", "child_functions:crash_over")
    trial._known.clear()
    with pytest.raises(ModelFormatError, match="ends the process"):
        model.load_head(head, sequences=1)
    model.close()


def test_own_layers_are_tried_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = gguf_hybrids.tiny_qwen35(folder / "own.gguf", following=1)
    model = BACKEND.load(path, ModelOptions(threads=1, gpu_layers=0, probe=False, watch=("next",)))
    tried = []
    admit = trial.admit_head

    def noting(*arguments: object) -> None:
        tried.append(arguments[1])
        admit(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(trial, "admit_head", noting)
    head = model.load_head(None, sequences=1)
    assert tried == [None]
    model.forward([Rows(0, 0, (20, 21), 1)])
    assert head.forward([HeadRows(0, 1, (21,), model.features()[:1], 1)]).shape == (1, 300)
    head.close()
    model.close()


def test_identities_of_trials_differ(folder: Path, target: Path) -> None:
    head = gguf_heads.tiny_eagle3(folder / "identity.gguf", vocab=VOCABULARY)
    files, options = [read_gguf(target), read_gguf(head)], ModelOptions()
    found = {
        trial._identity(files[:1], options),
        trial._identity(files[:1], options, kind="head"),
        trial._identity(files, options, kind="head"),
    }
    assert len(found) == 3
