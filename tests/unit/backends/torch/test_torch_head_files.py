"""Head files that cannot be used: each is refused with words, when it is named or when it is loaded."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import torch_heads
from foredraft.backends.torch import BACKEND
from foredraft.errors import (
    ForedraftError,
    ModelError,
    ModelFormatError,
    ModelNotFoundError,
    UnsupportedModelError,
)
from torch_cases import load
from torch_heads import HIDDEN, change_tensors, eagle3_tensors, write_specforge, write_speculators

Make = Callable[..., Path]
KNOWN = [5, 40, 299]
WATCH = ("layer:1", "layer:2", "layer:3")


@pytest.fixture
def target(folder: Make) -> Path:
    return folder("llama", num_hidden_layers=4, tie_word_embeddings=False)


def refusal(target: Path, head: Path | None) -> ForedraftError:
    """The error of naming this head, or else of loading it."""

    def use() -> None:
        watch = BACKEND.features_for(target, head) or ("next",)
        load(target, "fp32", watch=watch).load_head(head, sequences=1)

    with pytest.raises(ModelError) as caught:
        use()
    return caught.value


# --- what names a head ---------------------------------------------------------------------------------


def test_each_form_says_which_layers_it_reads(target: Path, tmp_path: Path) -> None:
    """SpecForge's numbers are outputs of layers, speculators' are inputs."""
    specforge = write_specforge(tmp_path / "a", eagle3_tensors())
    speculators = write_speculators(tmp_path / "b", eagle3_tensors())
    assert BACKEND.features_for(target, specforge) == WATCH
    assert BACKEND.features_for(target, speculators / "model.safetensors") == WATCH


def test_a_head_that_names_no_layers_reads_those_of_the_paper(folder: Make, tmp_path: Path) -> None:
    deep = folder("llama", num_hidden_layers=12, tie_word_embeddings=False)
    head = write_specforge(tmp_path / "head", eagle3_tensors(), eagle_config=None)
    assert BACKEND.features_for(deep, head) == ("layer:2", "layer:6", "layer:9")
    load(deep, "fp32", watch=("layer:2", "layer:6", "layer:9")).load_head(head, sequences=1)


def test_the_layers_of_a_model_with_images_are_those_of_its_text(target: Path, tmp_path: Path) -> None:
    head = write_specforge(tmp_path / "head", eagle3_tensors(), eagle_config=None)
    nested = shutil.copytree(target, tmp_path / "nested")
    for layers, needs in ((20, ("layer:2", "layer:10", "layer:17")), (None, None)):
        (nested / "config.json").write_text(json.dumps({"text_config": {"num_hidden_layers": layers}}))
        if needs:
            assert BACKEND.features_for(nested, head) == needs
            continue
        with pytest.raises(ModelFormatError, match="how many layers"):
            BACKEND.features_for(nested, head)


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "qwen3_5"])
def test_a_model_without_an_extra_layer_needs_nothing(folder: Make, architecture: str) -> None:
    path = folder(architecture)
    assert BACKEND.features_for(path, None) == ()
    assert "no layer for multi-token prediction" in refusal(path, None).message


def test_a_model_that_was_loaded_without_features_says_so(target: Path, tmp_path: Path) -> None:
    head = write_specforge(tmp_path / "head", eagle3_tensors())
    for watch in ((), ("layer:1", "next")):
        with pytest.raises(
            UnsupportedModelError, match=r"layer:1, layer:2, layer:3, with which .* not loaded"
        ):
            load(target, "fp32", watch=watch).load_head(head, sequences=1)


def test_so_does_one_of_another_forward(folder: Make, tmp_path: Path) -> None:
    head = write_specforge(tmp_path / "head", eagle3_tensors())
    with pytest.raises(UnsupportedModelError, match="without the hidden states"):
        load(folder("gemma3"), "fp32").load_head(head, sequences=1)


# --- damaged and other files ---------------------------------------------------------------------------


def test_no_file_a_gguf_and_something_else(target: Path, tmp_path: Path) -> None:
    (tmp_path / "head.gguf").write_bytes(b"GGUF")
    (tmp_path / "notes.txt").write_text("no head")
    (tmp_path / "empty").mkdir()
    for name, words, kind in (
        ("missing", "no head", ModelNotFoundError),
        ("head.gguf", "for models in GGUF files", UnsupportedModelError),
        ("notes.txt", "is no head", ModelFormatError),
        ("empty", "is no head", ModelFormatError),
    ):
        with pytest.raises(kind, match=words):
            BACKEND.features_for(target, tmp_path / name)


def test_a_head_for_a_gguf_that_torch_runs(tmp_path: Path) -> None:
    head = write_specforge(tmp_path / "head", eagle3_tensors())
    assert BACKEND.features_for(tmp_path / "model.gguf", None) == ()
    with pytest.raises(UnsupportedModelError, match="no folder of safetensors"):
        BACKEND.features_for(tmp_path / "model.gguf", head)


def test_another_model_is_no_head(target: Path, folder: Make) -> None:
    error = refusal(target, folder("qwen3"))
    assert isinstance(error, UnsupportedModelError)
    assert "is no EAGLE-3 head: its configuration says Qwen3ForCausalLM" in error.message


def test_a_configuration_that_is_not_json(target: Path, tmp_path: Path) -> None:
    head = write_specforge(tmp_path / "head", eagle3_tensors())
    for content in ("{", "[]", "\x00"):
        (head / "config.json").write_text(content)
        assert isinstance(refusal(target, head), ModelFormatError)


@pytest.mark.parametrize("keep", [0, 7, 100, 5000])
def test_a_file_that_ends_early(target: Path, tmp_path: Path, keep: int) -> None:
    head = write_specforge(tmp_path / "head", eagle3_tensors())
    weights = head / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:keep])
    assert isinstance(refusal(target, head), ModelFormatError)


def test_a_header_that_lies_about_a_tensor(target: Path, tmp_path: Path) -> None:
    """A shape that fits the head, with fewer bytes than it takes."""
    head = write_specforge(tmp_path / "head", eagle3_tensors())
    weights = head / "model.safetensors"
    whole = weights.read_bytes()
    size = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + size])
    header["norm.weight"]["data_offsets"][0] += 4
    text = json.dumps(header).encode()
    weights.write_bytes(len(text).to_bytes(8, "little") + text + whole[8 + size :])
    assert "is damaged" in refusal(target, head).message


NEEDED = [name for name in eagle3_tensors(known=KNOWN) if name not in ("d2t", "t2d", "lm_head.weight")]


@pytest.mark.parametrize("name", NEEDED)
def test_a_tensor_that_is_missing(target: Path, tmp_path: Path, name: str) -> None:
    tensors = eagle3_tensors(known=KNOWN)
    del tensors[name]
    error = refusal(target, write_speculators(tmp_path / "head", tensors))
    assert isinstance(error, ModelFormatError)
    assert f"lacks the tensor {name}" in error.message


@pytest.mark.parametrize("name", [*NEEDED, "lm_head.weight"])
def test_a_tensor_of_another_shape(target: Path, tmp_path: Path, name: str) -> None:
    tensors = eagle3_tensors(known=KNOWN)
    tensors[name] = torch.cat([tensors[name], tensors[name][:1]])
    error = refusal(target, write_specforge(tmp_path / "head", tensors))
    assert isinstance(error, ModelFormatError)
    assert name in error.message
    assert "is needed" in error.message


def test_an_output_for_a_vocabulary_that_is_not_there(target: Path, tmp_path: Path) -> None:
    tensors = eagle3_tensors(known=KNOWN)
    del tensors["lm_head.weight"]
    assert (
        "lacks the tensor lm_head.weight" in refusal(target, write_specforge(tmp_path / "a", tensors)).message
    )
    tensors = eagle3_tensors(known=KNOWN)
    del tensors["d2t"]
    assert "lm_head.weight has the shape (3, 64), but (300, 64)" in (
        refusal(target, write_specforge(tmp_path / "b", tensors)).message
    )


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ([5, 40, 300], "outside of the model's vocabulary"),
        ([-1, 40, 200], "outside of the model's vocabulary"),
        ([5, 5, 200], "names a token twice"),
    ],
)
def test_tokens_that_the_target_does_not_have(
    target: Path, tmp_path: Path, numbers: list[int], words: str
) -> None:
    tensors = eagle3_tensors(known=KNOWN) | {"d2t": torch.tensor(numbers) - torch.arange(3)}
    assert words in refusal(target, write_specforge(tmp_path / "head", tensors)).message


@pytest.mark.parametrize(
    "offsets", [torch.zeros(0, dtype=torch.long), torch.zeros(3), torch.zeros(3, 1).long()]
)
def test_numbers_that_are_none(target: Path, tmp_path: Path, offsets: Any) -> None:
    tensors = eagle3_tensors(known=KNOWN) | {"d2t": offsets}
    assert isinstance(refusal(target, write_specforge(tmp_path / "head", tensors)), ModelFormatError)


def test_a_quantised_head(target: Path, tmp_path: Path) -> None:
    tensors = eagle3_tensors()
    tensors["fc.weight"] = tensors["fc.weight"].to(torch.int8)
    error = refusal(target, write_specforge(tmp_path / "head", tensors))
    assert isinstance(error, UnsupportedModelError)
    assert "stored as I8" in error.message


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": 32}, "is needed"),
        ({"hidden_size": "64"}, "hidden_size is '64', which is no possible number"),
        ({"hidden_size": True}, "no possible number"),
        ({"hidden_size": None}, "no possible number"),
        ({"num_attention_heads": 0}, "no possible number"),
        ({"num_key_value_heads": 3}, "impossible"),
        ({"head_dim": None, "num_attention_heads": 7}, "cannot be divided"),
        ({"intermediate_size": 10**12}, "no possible number"),
        ({"num_hidden_layers": 2}, "more than one layer"),
        ({"hidden_act": "gelu"}, "activation 'gelu'"),
        ({"vocab_size": 32000}, "for a vocabulary of 32000 tokens"),
        ({"target_hidden_size": 4096}, "hidden states have 4096 numbers"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "rotary positions"),
        ({"rope_scaling": {"rope_type": "none of these"}}, "rotary positions"),
        ({"rope_scaling": "llama3"}, "rotary positions"),
        ({"rope_theta": "high"}, "rotary positions"),
        ({"norm_before_residual": "yes"}, "true or false is expected"),
        ({"foredraft_window": -1}, "no possible number"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 3]}}, "but the model has 4"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1]}}, r"is needed"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": "all"}}, "does not list the layers"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 1, 2]}, "reads the inputs of layers 1, 1, 2"),
        ({"architectures": ["LlamaForCausalLM"]}, "is no EAGLE-3 head"),
        ({"architectures": "Eagle3"}, "is no EAGLE-3 head"),
    ],
)
def test_settings_that_cannot_be(target: Path, tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    head = write_specforge(tmp_path / "head", eagle3_tensors(), **changes)
    error = refusal(target, head)
    assert words in error.message, error.message


def test_a_head_of_another_width_needs_ends_of_its_own(folder: Make, tmp_path: Path) -> None:
    """Here the target is wider than the head, which has the embeddings of its own width or not."""
    wide = folder("llama", num_hidden_layers=4, hidden_size=96, tie_word_embeddings=False)
    for own, words in ((True, ""), (False, "no embeddings of its own")):
        tensors = eagle3_tensors(own_embedding=own, known=KNOWN)
        tensors["fc.weight"] = torch.randn(HIDDEN, 3 * 96)
        head = write_specforge(tmp_path / f"{own}", tensors)
        if words:
            assert words in refusal(wide, head).message
        else:
            load(wide, "fp32", watch=WATCH).load_head(head, sequences=1)


# --- layers for multi-token prediction -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("model.layers.2.eh_proj.weight", "no layer for multi-token prediction"),
        ("model.layers.2.enorm.weight", "lacks the tensor enorm.weight"),
        ("model.layers.2.shared_head.norm.weight", "lacks the tensor norm.weight"),
        ("model.layers.2.self_attn.q_proj.weight", "for example self_attn.q_proj.weight"),
        ("model.layers.2.mlp.experts.3.up_proj.weight", "lacks a part of its experts"),
        ("model.layers.2.mlp.gate.weight", "for example mlp.gate.weight"),
    ],
)
def test_an_extra_layer_that_is_incomplete(tmp_path: Path, name: str, words: str) -> None:
    path = change_tensors(torch_heads.make_mtp(tmp_path / "model", "glm4_moe"), {name: None})
    assert words in refusal(path, None).message


@pytest.mark.parametrize("name", ["hnorm.weight", "self_attn.o_proj.weight", "eh_proj.weight"])
def test_an_extra_layer_of_another_shape(tmp_path: Path, name: str) -> None:
    wrong = {f"model.layers.2.{name}": torch.zeros(7, 7)}
    path = change_tensors(torch_heads.make_mtp(tmp_path / "model", "glm4_moe"), wrong)
    error = refusal(path, None)
    assert isinstance(error, ModelFormatError)
    assert "is needed" in error.message


def test_an_extra_layer_that_is_quantised(tmp_path: Path) -> None:
    path = torch_heads.make_mtp(tmp_path / "model", "glm4_moe")
    name = "model.layers.2.self_attn.o_proj.weight"
    quantised = {name: torch.zeros(HIDDEN, HIDDEN, dtype=torch.float8_e4m3fn)}
    error = refusal(change_tensors(path, quantised), None)
    assert isinstance(error, UnsupportedModelError)
    assert "stored as F8_E4M3" in error.message
