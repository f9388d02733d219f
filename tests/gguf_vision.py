"""Small GGUF models that see, of three families: random weights, real arithmetic (see `gguf_factory`).

Qwen2-VL has positions of several dimensions (M-RoPE), and as many rows as an image has squares. Gemma 3 has a
fixed number of rows, which see one another in both directions and have to be in one forward. LLaVA is a Llama
with a fixed number of rows that are as those of text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import gguf
import numpy as np

from gguf_factory import tiny_llama
from gguf_hybrids import tiny_qwen35
from gguf_parts import Weights, new_writer, write
from gguf_windows import tiny_gemma3

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gguf_parts import Tensor, WeightType

WIDTH, PATCH = 64, 8
"""Numbers of a row of both models; an image's squares are of 8 × 8 pixels."""


def qwen2vl(folder: Path, *, seed: int = 0) -> Path:
    """Write a Qwen2-VL and its mmproj into a new folder; returns the model's file. Rows: one for 16 × 16
    pixels, at least 8.
    """
    folder.mkdir()
    _qwen2vl_text(folder / "tiny-qwen2vl.gguf", seed)
    _qwen_eye(folder / "mmproj-tiny-qwen2vl-f16.gguf", "qwen2vl_merger", seed)
    return folder / "tiny-qwen2vl.gguf"


def qwen35(folder: Path, *, seed: int = 0, mixing: float = 0.5, weight_type: WeightType = "q8_0") -> Path:
    """Write a Qwen3.5 and its mmproj into a new folder; returns the model's file. It has a recurrent state,
    positions of several dimensions, and a layer for multi-token prediction.
    """
    folder.mkdir()
    path = folder / "tiny-qwen35.gguf"
    tiny_qwen35(path, seed=seed, vocab=384, following=1, mixing=mixing, weight_type=weight_type)
    _qwen_eye(folder / "mmproj-tiny-qwen35-f16.gguf", "qwen3vl_merger", seed)
    return path


def _qwen_eye(path: Path, projector: str, seed: int) -> None:
    third = projector == "qwen3vl_merger"
    weights, writer = Weights(32, seed + 1, 0.5), _eye(path, 64)
    writer.add_string("clip.projector_type", projector)
    writer.add_bool("clip.use_gelu" if third else "clip.use_silu", val=True)
    for name, values in _blocks(weights, fused=third):
        writer.add_tensor(name, values)
    if third:
        writer.add_tensor("v.patch_embd.bias", np.zeros(32, np.float32))
        writer.add_tensor("v.position_embd.weight", weights.matrix(64, 32))
    for name in ("v.patch_embd.weight", "v.patch_embd.weight.1"):
        writer.add_tensor(name, _patches(weights))
    for name, rows in (("mm.0", 128), ("mm.2", WIDTH)):
        writer.add_tensor(f"{name}.weight", weights.matrix(rows, 128, 2.0))
        writer.add_tensor(f"{name}.bias", np.zeros(rows, np.float32))
    write(writer)


def llava(
    folder: Path, *, seed: int = 0, layers: int = 2, mixing: float = 0.5, weight_type: WeightType = "q8_0"
) -> Path:
    """Write a LLaVA and its mmproj into a new folder; returns the model's file. An image has 100 rows."""
    folder.mkdir()
    tiny_llama(
        folder / "tiny-llava.gguf",
        seed=seed,
        layers=layers,
        mixing=mixing,
        ctx_train=1024,
        weight_type=weight_type,
    )
    weights, writer = Weights(32, seed + 1, 0.5), _eye(folder / "mmproj-tiny-llava-f16.gguf", 80)
    writer.add_string("clip.projector_type", "mlp")
    writer.add_bool("clip.use_gelu", val=True)
    for name, values in _blocks(weights):
        writer.add_tensor(name, values)
    writer.add_tensor("v.pre_ln.weight", weights.ones())
    writer.add_tensor("v.pre_ln.bias", np.zeros(32, np.float32))
    writer.add_tensor("v.patch_embd.weight", _patches(weights))
    writer.add_tensor("v.position_embd.weight", weights.matrix(100, 32))
    for name, columns in (("mm.0", 32), ("mm.2", WIDTH)):
        writer.add_tensor(f"{name}.weight", weights.matrix(WIDTH, columns, 4.0))
        writer.add_tensor(f"{name}.bias", np.zeros(WIDTH, np.float32))
    write(writer)
    return folder / "tiny-llava.gguf"


def gemma3(folder: Path, *, seed: int = 0, window: int = 512) -> Path:
    """Write a Gemma 3 and its mmproj into a new folder; returns the model's file. An image has 16 rows."""
    folder.mkdir()
    tiny_gemma3(folder / "tiny-gemma3.gguf", seed=seed, vocab=384, window=window)
    weights, writer = Weights(32, seed + 1, 0.5), _eye(folder / "mmproj-tiny-gemma3-f16.gguf", 64)
    writer.add_string("clip.projector_type", "gemma3")
    writer.add_bool("clip.use_gelu", val=True)
    writer.add_uint32("clip.vision.projector.scale_factor", 2)
    for name, values in _blocks(weights):
        writer.add_tensor(name, values)
    writer.add_tensor("v.patch_embd.weight", _patches(weights))
    writer.add_tensor("v.patch_embd.bias", np.zeros(32, np.float32))
    writer.add_tensor("v.position_embd.weight", weights.matrix(64, 32))
    writer.add_tensor("mm.soft_emb_norm.weight", weights.ones())
    writer.add_tensor("mm.input_projection.weight", weights.matrix(32, WIDTH, 6.0))
    write(writer)
    return folder / "tiny-gemma3.gguf"


def _eye(path: Path, size: int) -> gguf.GGUFWriter:
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_name("Tiny eye")
    writer.add_file_type(0)
    writer.add_bool("clip.has_vision_encoder", val=True)
    numbers = {
        "embedding_length": 32,
        "feed_forward_length": 64,
        "block_count": 2,
        "projection_dim": WIDTH,
        "attention.head_count": 2,
        "image_size": size,
        "patch_size": PATCH,
    }
    for name, number in numbers.items():
        writer.add_uint32(f"clip.vision.{name}", number)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-5)
    writer.add_array("clip.vision.image_mean", [0.5, 0.5, 0.5])
    writer.add_array("clip.vision.image_std", [0.5, 0.5, 0.5])
    return writer


def _patches(weights: Weights) -> np.ndarray:
    return weights.matrix(32, 3 * PATCH * PATCH, 4.0).reshape(32, 3, PATCH, PATCH)


def _blocks(weights: Weights, *, fused: bool = False) -> Iterator[Tensor]:
    zeros = np.zeros(32, np.float32)
    yield "v.post_ln.weight", weights.ones()
    yield "v.post_ln.bias", zeros
    for block in range(2):
        prefix = f"v.blk.{block}."
        for name in ("attn_qkv", "attn_out") if fused else ("attn_q", "attn_k", "attn_v", "attn_out"):
            size = 96 if name == "attn_qkv" else 32
            yield f"{prefix}{name}.weight", weights.matrix(size, 32)
            yield f"{prefix}{name}.bias", np.zeros(size, np.float32)
        for name in ("ln1", "ln2"):
            yield f"{prefix}{name}.weight", weights.ones()
            yield f"{prefix}{name}.bias", zeros
        yield f"{prefix}ffn_up.weight", weights.matrix(64, 32)
        yield f"{prefix}ffn_up.bias", np.zeros(64, np.float32)
        yield f"{prefix}ffn_down.weight", weights.matrix(32, 64)
        yield f"{prefix}ffn_down.bias", zeros


def _qwen2vl_text(path: Path, seed: int, weight_type: WeightType = "q8_0") -> None:
    heads, kv_heads, mixing = 2, 1, 0.5
    head = WIDTH // heads
    writer = new_writer(
        path,
        "qwen2vl",
        name="Tiny Qwen2-VL",
        vocab=384,
        layers=2,
        embd=WIDTH,
        ctx_train=1024,
        weight_type=weight_type,
    )
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_dimension_count(head)
    writer.add_rope_freq_base(10000.0)
    writer.add_array("qwen2vl.rope.dimension_sections", [4, 6, 6, 0])
    weights = Weights(WIDTH, seed, mixing)

    def layer(number: int) -> Iterator[Tensor]:
        prefix = f"blk.{number}."
        yield prefix + "attn_norm.weight", weights.ones()
        yield prefix + "attn_q.weight", weights.matrix(WIDTH, WIDTH, 2.0)
        yield prefix + "attn_k.weight", weights.matrix(head * kv_heads, WIDTH, 2.0)
        yield prefix + "attn_v.weight", weights.matrix(head * kv_heads, WIDTH)
        for name, size in (("q", WIDTH), ("k", head * kv_heads), ("v", head * kv_heads)):
            yield f"{prefix}attn_{name}.bias", weights.within(-0.1, 0.1, size)
        yield prefix + "attn_output.weight", weights.matrix(WIDTH, WIDTH, 2.0 * mixing)
        yield prefix + "ffn_norm.weight", weights.ones()
        yield from weights.feed_forward(prefix)

    write(writer, weights.model(384, 2, layer), weight_type)
