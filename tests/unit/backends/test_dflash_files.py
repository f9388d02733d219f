"""Files that are no block-diffusion heads of a model, or damaged ones, are refused in words, and end no
process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import gguf
import pytest

import gguf_dflash
import gguf_factory
import gguf_mimo
import gguf_windows
from foredraft.backends.llamacpp import BACKEND, trial
from foredraft.errors import ModelError, ModelFormatError, UnsupportedModelError
from foredraft.isolation.pool import ChildPool
from gguf_loads import LOADED
from gguf_mutations import setting

VOCABULARY, LAYERS = 384, 4
UINT32, ARRAY, BOOL = gguf.GGUFValueType.UINT32, gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.BOOL
FLOAT32, STRING, INT32 = gguf.GGUFValueType.FLOAT32, gguf.GGUFValueType.STRING, gguf.GGUFValueType.INT32
MASK = "tokenizer.ggml.mask_token_id"

Edit = Callable[[gguf.GGUFWriter], None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gguf")


@pytest.fixture(scope="module")
def target(folder: Path) -> Path:
    return gguf_factory.tiny_llama(folder / "target.gguf", vocab=VOCABULARY, layers=LAYERS)


def refused(target: Path, head: Path, error: type[ModelError], words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        BACKEND.features_for(target, head)
    assert caught.value.hint
    head.unlink()


def without(key: str) -> Edit:
    return lambda writer: writer.kv_data[0].pop(key)


def test_a_head_that_fits(folder: Path, target: Path) -> None:
    head = gguf_dflash.tiny_dflash(folder / "fits.gguf", layers=(3, 0))
    assert BACKEND.features_for(target, head) == ("layer:3", "layer:0")
    many = gguf_factory.tiny_llama(folder / "deep-target.gguf", vocab=VOCABULARY, layers=20)
    head = gguf_dflash.tiny_dflash(folder / "fits-20.gguf", layers=range(20))
    assert len(BACKEND.features_for(many, head)) == 20


def test_heads_of_other_models(folder: Path, target: Path) -> None:
    wide = gguf_dflash.tiny_dflash(folder / "wide.gguf", embd=128)
    refused(target, wide, UnsupportedModelError, "another model: it is for hidden states of 128")
    other = gguf_dflash.tiny_dflash(folder / "other.gguf", vocab=VOCABULARY + 8)
    refused(target, other, UnsupportedModelError, "another model: it is for 392 tokens")
    deep = gguf_dflash.tiny_dflash(folder / "deep.gguf", layers=(1, LAYERS))
    refused(target, deep, UnsupportedModelError, f"reads layer:{LAYERS} was made for another model")
    spelt = setting("tokenizer.ggml.pre", "llama3", STRING).edit
    head = gguf_dflash.tiny_dflash(folder / "spelt.gguf", edit=spelt)
    refused(target, head, UnsupportedModelError, "the tokenizer llama3")


def test_targets_that_return_no_hidden_states(folder: Path) -> None:
    gemma = gguf_windows.tiny_gemma3(folder / "gemma.gguf", vocab=VOCABULARY, layers=LAYERS)
    refused(gemma, gguf_dflash.tiny_dflash(folder / "for-gemma.gguf"), UnsupportedModelError, "gemma3")


def test_what_the_last_layer_returns(folder: Path) -> None:
    mimo = gguf_mimo.tiny_mimo2(folder / "mimo.gguf", vocab=VOCABULARY, layers=3, following=1)
    head = gguf_dflash.tiny_dflash(folder / "reads-last.gguf", layers=(1, 3))
    assert BACKEND.features_for(mimo, head) == ("layer:1", "layer:3")
    end = setting("dflash.target_layers", [1, 4], ARRAY).edit
    head = gguf_dflash.tiny_dflash(folder / "beyond-last.gguf", layers=(1, 3), edit=end)
    refused(mimo, head, UnsupportedModelError, "reads layer:4 was made for another")


def test_a_head_of_deepseek_v4(folder: Path, target: Path) -> None:
    edit = setting("dflash.hyper_connection.count", 4, UINT32).edit
    head = gguf_dflash.tiny_dflash(folder / "v4.gguf", kind="markov", edit=edit)
    refused(target, head, UnsupportedModelError, "DeepSeek V4")


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (without(MASK), "mask_token_id is None"),
        (setting(MASK, VOCABULARY, UINT32).edit, f"mask_token_id is {VOCABULARY}"),
        (setting("dflash.block_size", 1, UINT32).edit, "block_size is 1"),
        (setting("dflash.block_size", "8", STRING).edit, "block_size is 8"),
        (setting("dflash.attention.causal", 1, UINT32).edit, "causal is 1, neither"),
        (setting("dflash.target_layers", [1, 1], ARRAY).edit, "a layer twice"),
        (setting("dflash.target_layers", [1, 2], ARRAY).edit, "fc.weight has the shape"),
        (without("dflash.target_layers"), "target_layers is None"),
    ],
)
def test_headers_without_what_a_block_takes(folder: Path, target: Path, edit: Edit, words: str) -> None:
    refused(target, gguf_dflash.tiny_dflash(folder / "block.gguf", edit=edit), ModelFormatError, words)


def test_a_markov_head_states_its_block(folder: Path, target: Path) -> None:
    plain = gguf_dflash.tiny_dflash(folder / "usual.gguf", edit=without("dflash.block_size"))
    assert BACKEND.features_for(target, plain)
    markov = gguf_dflash.tiny_dflash(folder / "markov.gguf", kind="markov", edit=without("dflash.block_size"))
    refused(target, markov, ModelFormatError, "block_size is None")


def test_a_selector_states_its_choices(folder: Path, target: Path) -> None:
    for edit in (
        without("dflash.selector_top_k"),
        setting("dflash.selector_top_k", VOCABULARY + 1, UINT32).edit,
    ):
        head = gguf_dflash.tiny_dflash(folder / "selector.gguf", kind="selector", edit=edit)
        refused(target, head, ModelFormatError, "selector_top_k is")


def test_a_reduced_vocabulary_has_outputs_of_its_own(folder: Path, target: Path) -> None:
    head = gguf_dflash.tiny_dflash(folder / "tied.gguf", chosen=range(50, 90), tied=True)
    refused(target, head, ModelFormatError, "no output.weight")
    head = gguf_dflash.tiny_dflash(folder / "beyond.gguf", chosen=[3, VOCABULARY - 1])
    assert BACKEND.features_for(target, head)


def mutated() -> Iterator[tuple[str, gguf_dflash.Kind, Edit]]:
    for kind, key, type_, values in (
        ("plain", "dflash.block_count", UINT32, (0, 1, 3, 513)),
        ("plain", "dflash.embedding_length", UINT32, (0, 32, 2**31)),
        ("plain", "dflash.attention.head_count", UINT32, (0, 3, 8, 2**31)),
        ("plain", "dflash.attention.head_count_kv", UINT32, (0, 1, 3, 8)),
        ("plain", "dflash.attention.key_length", UINT32, (0, 8, 17)),
        ("plain", "dflash.attention.value_length", UINT32, (0, 8, 17)),
        ("plain", "dflash.attention.layer_norm_rms_epsilon", FLOAT32, (float("nan"), -1.0)),
        ("plain", "dflash.attention.scale", FLOAT32, (float("nan"),)),
        ("plain", "dflash.feed_forward_length", UINT32, (0, 64, 2**31)),
        ("plain", "dflash.rope.dimension_count", UINT32, (0, 3, 1024)),
        ("plain", "dflash.rope.dimension_sections", ARRAY, ([0, 0, 0, 0], [99, 0, 0, 0], [8, -1, 0, 0])),
        ("plain", "dflash.target_layers", ARRAY, ([-1, 0, 1, 2], [2**31 - 1, 0, 1, 2], ["a", "b", "c", "d"])),
        ("plain", "dflash.attention.sliding_window", UINT32, (1, 2**31)),
        ("plain", "dflash.attention.sliding_window_pattern", ARRAY, ([True],)),
        ("plain", "dflash.block_size", UINT32, (0, 63, 2**31)),
        ("plain", "dflash.hidden_act", STRING, ("gelu", "nonesuch")),
        ("plain", "dflash.context_length", UINT32, (0, 1)),
        ("plain", "tokenizer.ggml.tokens", ARRAY, (["a"] * VOCABULARY, ["a"] * 3)),
        ("markov", "dflash.block_size", UINT32, (2, 200)),
        ("markov", "dflash.block_size", INT32, (-1,)),
        ("markov", "dflash.sample_from_anchor", STRING, ("true",)),
        ("selector", "dflash.selector_top_k", UINT32, (0, 1, 8, 300)),
        ("selector", "dflash.selector_rank", UINT32, (0, 1, 64, 2**31)),
        ("selector", "dflash.conv_kernel_size", UINT32, (0, 1, 99)),
        ("selector", "dflash.conv_group_size", UINT32, (0, 1, 7, 128)),
    ):
        for value in values:
            made = setting(key, value, type_)
            yield f"{kind} {made.name}", kind, made.edit  # type: ignore[misc]


def test_no_damaged_head_ends_a_process(folder: Path, target: Path) -> None:
    ends: dict[str, str] = {}
    with ChildPool(size=1, memory=trial.MEMORY) as children:
        for number, (name, kind, edit) in enumerate(mutated()):
            head = gguf_dflash.tiny_dflash(folder / f"mutated-{number}.gguf", kind=kind, edit=edit)
            ends[name] = str(children.call("gguf_loads:load_head", str(target), str(head), seconds=120.0))
            head.unlink()
    loaded = {name for name, end in ends.items() if end == LOADED}
    assert len(ends) > 40
    assert len(loaded) < len(ends) / 3, loaded
    assert not [name for name, end in ends.items() if end != LOADED and not end.startswith("2: ")], ends
