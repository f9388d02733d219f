"""Small GGUF models with sliding-window attention: random weights, real arithmetic (see `gguf_factory`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gguf_parts import Weights, new_writer, write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gguf_parts import Tensor, WeightType


def tiny_gemma3(
    path: Path,
    *,
    window: int = 32,
    vocab: int = 300,
    layers: int = 2,
    embd: int = 64,
    ctx_train: int = 1024,
    seed: int = 0,
    mixing: float = 0.5,
    weight_type: WeightType = "q8_0",
) -> Path:
    """Write a Gemma 3 whose layers see the last `window` tokens (every sixth layer all), return its path."""
    heads, head = 2, embd // 2
    writer = new_writer(
        path,
        "gemma3",
        name="Tiny window",
        vocab=vocab,
        layers=layers,
        embd=embd,
        ctx_train=ctx_train,
        weight_type=weight_type,
    )
    writer.add_head_count(heads)
    writer.add_head_count_kv(1)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_rope_freq_base(10000.0)
    writer.add_sliding_window(window)
    weights = Weights(embd, seed, mixing)

    def layer(number: int) -> Iterator[Tensor]:
        prefix = f"blk.{number}."
        yield prefix + "attn_norm.weight", weights.ones()
        yield prefix + "attn_q.weight", weights.matrix(heads * head, embd, 2.0)
        yield prefix + "attn_k.weight", weights.matrix(head, embd, 2.0)
        yield prefix + "attn_v.weight", weights.matrix(head, embd)
        yield prefix + "attn_q_norm.weight", weights.ones(head)
        yield prefix + "attn_k_norm.weight", weights.ones(head)
        yield prefix + "attn_output.weight", weights.matrix(embd, heads * head, 2.0 * mixing)
        yield prefix + "post_attention_norm.weight", weights.ones()
        yield prefix + "ffn_norm.weight", weights.ones()
        yield from weights.feed_forward(prefix)
        yield prefix + "post_ffw_norm.weight", weights.ones()

    write(writer, weights.model(vocab, layers, layer), weight_type)
    return path


def tiny_gemma4(path: Path, *, layers: int = 4, shared: int = 2, embd: int = 64, seed: int = 0) -> Path:
    """Write a Gemma 4 whose last `shared` layers use the keys and values of earlier ones, and have matrices
    for keys and values that are not used; return its path.
    """
    vocab, heads, head = 300, 2, embd // 2
    writer = new_writer(
        path,
        "gemma4",
        name="Tiny shared",
        vocab=vocab,
        layers=layers,
        embd=embd,
        ctx_train=1024,
        weight_type="q8_0",
    )
    writer.add_head_count(heads)
    writer.add_head_count_kv(1)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_key_length_swa(head)
    writer.add_value_length_swa(head)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_freq_base_swa(10000.0)
    writer.add_sliding_window(32)
    writer.add_sliding_window_pattern([number % 2 == 0 for number in range(layers)])
    writer.add_shared_kv_layers(shared)
    writer.add_embedding_length_per_layer_input(0)
    weights = Weights(embd, seed, 0.5)

    def layer(number: int) -> Iterator[Tensor]:
        prefix = f"blk.{number}."
        yield prefix + "attn_norm.weight", weights.ones()
        yield prefix + "attn_q.weight", weights.matrix(heads * head, embd, 2.0)
        yield prefix + "attn_k.weight", weights.matrix(head, embd, 2.0)
        yield prefix + "attn_v.weight", weights.matrix(head, embd)
        yield prefix + "attn_q_norm.weight", weights.ones(head)
        yield prefix + "attn_k_norm.weight", weights.ones(head)
        yield prefix + "attn_output.weight", weights.matrix(embd, heads * head, 1.0)
        yield prefix + "post_attention_norm.weight", weights.ones()
        yield prefix + "ffn_norm.weight", weights.ones()
        yield from weights.feed_forward(prefix)
        yield prefix + "post_ffw_norm.weight", weights.ones()

    def model() -> Iterator[Tensor]:
        yield from weights.model(vocab, layers, layer)
        yield "rope_freqs.weight", np.ones(head // 2, np.float32)

    write(writer, model(), "q8_0")
    return path
