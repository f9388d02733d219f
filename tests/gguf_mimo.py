"""Small MiMo files: a dense model with layers for multi-token prediction, one for each token ahead."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gguf_parts import Weights, new_writer, next_layer, write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gguf_parts import Tensor, WeightType


def tiny_mimo2(
    path: Path,
    *,
    vocab: int = 384,
    layers: int = 2,
    following: int = 3,
    embd: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    ctx_train: int = 1024,
    seed: int = 0,
    mixing: float = 0.15,
    shifted: bool = False,
    weight_type: WeightType = "f32",
) -> Path:
    """Write a MiMo with `following` such layers, and return its path. With `mixing` 0 all of them predict
    what the model writes; `shifted`: the n-th of them, from 0 on, the token n ids after that.
    """
    head = embd // heads
    writer = new_writer(
        path,
        "mimo2",
        name="Tiny chain",
        vocab=vocab,
        layers=layers + following,
        embd=embd,
        ctx_train=ctx_train,
        weight_type=weight_type,
    )
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_rope_dimension_count(head)
    writer.add_rope_freq_base(10000.0)
    writer.add_sliding_window(512)
    writer.add_array(
        "mimo2.attention.sliding_window_pattern", [number % 2 == 0 for number in range(layers + following)]
    )
    writer.add_uint32("mimo2.expert_feed_forward_length", 2 * embd)
    writer.add_uint32("mimo2.nextn_predict_layers", following)
    weights = Weights(embd, seed, mixing)

    def layer(number: int) -> Iterator[Tensor]:
        prefix = f"blk.{number}."
        if number >= layers:
            yield from next_layer(prefix, weights)
        yield prefix + "attn_norm.weight", weights.ones()
        yield prefix + "attn_qkv.weight", weights.matrix((heads + 2 * kv_heads) * head, embd, 2.0)
        yield prefix + "attn_output.weight", weights.matrix(embd, embd, 2.0 * mixing)
        yield prefix + "ffn_norm.weight", weights.ones()
        yield from weights.feed_forward(prefix)

    tensors = dict(weights.model(vocab, layers + following, layer))
    for number in range(following) if shifted else ():
        output = np.roll(tensors["output.weight"], number, axis=0)
        tensors[f"blk.{layers + number}.nextn.shared_head_head.weight"] = output
    write(writer, tensors.items(), weight_type)
    return path
