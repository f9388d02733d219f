"""Models and heads whose weights are stored in FP8, with a scale for each block."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import torch_factory
import torch_heads
from foredraft.backends.torch import BACKEND
from foredraft.config import ModelOptions
from foredraft.errors import ModelError, ModelFormatError, UnsupportedModelError
from foredraft.types import HeadRows, Logits, Rows

Block = tuple[int, int]

UNEVEN = (48, 40)  # neither divides the sizes here
TEXT, DRAFT = [5, 9, 30, 41, 7, 100], [12, 60]
LARGEST = 448.0


def in_blocks(weight: Any, block: Block) -> tuple[Any, Any]:
    """A matrix in FP8, and its scales."""
    rows, columns = weight.shape
    scales = torch.zeros(-(-rows // block[0]), -(-columns // block[1]))
    made = torch.zeros_like(weight)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            part = (slice(i * block[0], (i + 1) * block[0]), slice(j * block[1], (j + 1) * block[1]))
            scales[i, j] = weight[part].abs().max() / LARGEST
            made[part] = weight[part] / scales[i, j]
    return made.to(torch.float8_e4m3fn), scales


def stored_in_fp8(folder: Path, meant: Path, block: Block) -> None:
    """Store a folder's products in FP8, and write one with the numbers that are then meant."""
    meant.mkdir()
    for file in folder.iterdir():
        (meant / file.name).write_bytes(file.read_bytes())
    fp8: dict[str, Any] = {}
    whole: dict[str, Any] = {}
    for name, weight in load_file(folder / "model.safetensors").items():
        fp8[name] = whole[name] = weight
        if weight.ndim == 2 and name.endswith(("proj.weight", "fc.weight")):
            fp8[name], scales = in_blocks(weight.float(), block)
            fp8[f"{name}_scale_inv"] = scales
            spread = scales.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
            whole[name] = fp8[name].float() * spread[: weight.shape[0], : weight.shape[1]]
    assert len(fp8) > len(whole)
    save_file(fp8, folder / "model.safetensors", metadata={"format": "pt"})
    save_file(whole, meant / "model.safetensors", metadata={"format": "pt"})
    file = folder / "config.json"
    says = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
    config = json.loads(file.read_text())
    file.write_text(json.dumps(config | {"quantization_config": {**says, "weight_block_size": [*block]}}))


def computed(target: Path, head: Path | None) -> tuple[Logits, Logits]:
    """A target's logits after a text, and a head's after it and each token of a draft."""
    watch = BACKEND.features_for(target, head)
    options = ModelOptions(threads=1, dtype="fp32", probe=False, watch=watch, gpu_layers=0)
    model = BACKEND.load(target, options)
    logits = model.forward([Rows(0, 0, TEXT, 1)]).copy()
    loaded = model.load_head(head, sequences=1)
    found = [loaded.forward([HeadRows(0, 1, TEXT[1:], model.features()[:-1], 1)])[0].copy()]
    for i, token in enumerate(DRAFT):
        found.append(loaded.forward([HeadRows(0, len(TEXT) + i, [token], None, 1)])[0].copy())
    loaded.close()
    model.close()
    return logits, np.stack(found)


@pytest.mark.parametrize(
    ("family", "size"), [("qwen3_5", 32), ("glm4_moe", 32), ("deepseek_v3", 32), ("mimo_v2_flash", 8)]
)
def test_a_model_and_its_own_layer_in_fp8(tmp_path: Path, family: str, size: int) -> None:
    fp8, meant = torch_heads.make_mtp(tmp_path / "fp8", family), tmp_path / "meant"
    stored_in_fp8(fp8, meant, (size, size))
    logits, drafted = computed(fp8, None)
    expected, expected_drafted = computed(meant, None)
    np.testing.assert_allclose(logits, expected, atol=1e-5)
    np.testing.assert_allclose(drafted, expected_drafted, atol=1e-5)


@pytest.mark.parametrize("write", [torch_heads.write_specforge, torch_heads.write_speculators])
def test_an_eagle3_head_in_fp8(tmp_path: Path, write: Callable[..., Path]) -> None:
    target = torch_factory.make_tiny_llama(tmp_path / "target", num_hidden_layers=4)
    fp8 = write(tmp_path / "fp8", torch_heads.eagle3_tensors(known=range(10, 200)))
    stored_in_fp8(fp8, tmp_path / "meant", UNEVEN)
    _, drafted = computed(target, fp8)
    _, expected = computed(target, tmp_path / "meant")
    assert np.isfinite(drafted).sum() == 190 * (1 + len(DRAFT))
    np.testing.assert_allclose(drafted, expected, atol=1e-5)


def test_one_scale_for_a_whole_matrix(tmp_path: Path) -> None:
    target = torch_factory.make_tiny_llama(tmp_path / "target", num_hidden_layers=4)
    tensors = torch_heads.eagle3_tensors()
    name = "midlayer.mlp.up_proj.weight"
    scale = tensors[name].abs().max() / LARGEST
    fp8 = {name: (tensors[name] / scale).to(torch.float8_e4m3fn), f"{name}_scale_inv": scale.reshape(1)}
    whole = {name: fp8[name].float() * scale}
    _, drafted = computed(target, torch_heads.write_specforge(tmp_path / "fp8", tensors | fp8))
    _, expected = computed(target, torch_heads.write_specforge(tmp_path / "meant", tensors | whole))
    np.testing.assert_allclose(drafted, expected, atol=1e-5)


def refusal(target: Path, head: Path | None) -> ModelError:
    with pytest.raises(ModelError) as caught:
        computed(target, head)
    assert caught.value.hint
    return caught.value


def test_scales_that_are_missing_or_do_not_fit(tmp_path: Path) -> None:
    path = torch_heads.make_mtp(tmp_path / "model", "qwen3_5")
    stored_in_fp8(path, tmp_path / "meant", (32, 32))
    name = "mtp.layers.0.mlp.up_proj.weight"
    torch_heads.change_tensors(path, {f"{name}_scale_inv": torch.ones(9, 9)})
    error = refusal(path, None)
    assert isinstance(error, ModelFormatError)
    assert "scales of block.mlp.up_proj.weight" in error.message
    torch_heads.change_tensors(path, {f"{name}_scale_inv": None})
    error = refusal(path, None)
    assert isinstance(error, UnsupportedModelError)
    assert f"{name} is stored as F8_E4M3 without scales in _scale_inv" in error.message


def test_a_model_whose_blocks_are_uneven_is_refused(tmp_path: Path) -> None:
    """transformers divides 64 rows of blocks of 48 in two times 32, and says nothing."""
    path = torch_factory.make_tiny_llama(tmp_path / "model", num_hidden_layers=2)
    stored_in_fp8(path, tmp_path / "meant", UNEVEN)
    with pytest.raises(UnsupportedModelError, match="no multiple of the blocks of 48 × 40"):
        BACKEND.load(path, ModelOptions(threads=1, probe=False, gpu_layers=0))


@pytest.mark.parametrize("size", [[0, 128], [128], "128", [True, 128]])
def test_blocks_of_an_impossible_size(tmp_path: Path, size: object) -> None:
    target = torch_factory.make_tiny_llama(tmp_path / "target", num_hidden_layers=4)
    says = {"quant_method": "fp8", "weight_block_size": size}
    head = torch_heads.write_specforge(
        tmp_path / "head", torch_heads.eagle3_tensors(), quantization_config=says
    )
    with pytest.raises(ModelFormatError, match="weight_block_size"):
        BACKEND.features_for(target, head)


def test_a_model_in_fp8_is_never_computed_by_kernels_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is a GPU, transformers would keep FP8 weights, which our forwards cannot read."""
    path = torch_factory.make_tiny_llama(tmp_path / "model")
    stored_in_fp8(path, tmp_path / "meant", (32, 32))
    given: list[Any] = []
    original = AutoModelForCausalLM.from_pretrained

    def noting(*arguments: Any, **keywords: Any) -> Any:
        given.append(keywords["config"].quantization_config["dequantize"])
        return original(*arguments, **keywords)

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", noting)
    BACKEND.load(path, ModelOptions(threads=1, probe=False, gpu_layers=0)).close()
    assert given == [True]
