"""Small block-diffusion heads as GGUF files: DFlash, DFlash2 with a selector, DSpark with a Markov head.

Random ones, and ones that are right about a target made for it (`tiny_cycles`), whose next token depends on
the last one alone. A Markov head and a selector can know that: how well a token follows another is a product
of two vectors. Without either, a block's rows do not know what the others propose; then only a target that
repeats one token can be known, by masks that look at their block's first row and at nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from gguf_factory import tiny_llama
from gguf_heads import tensors_of
from gguf_parts import Weights, new_writer, write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import gguf

    from gguf_parts import Tensor, WeightType

Kind = Literal["plain", "markov", "selector"]

KERNEL, GROUP, RANK, CHOICES = 3, 8, 12, 5
"""Of a selector's convolutions and its tables."""

MASK = 3
SHARPNESS = 40.0
"""How much more a mask sees of its block's first row than of others, before the softmax."""


def tiny_dflash(
    path: Path,
    *,
    kind: Kind = "plain",
    vocab: int = 384,
    embd: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    depth: int = 2,
    layers: Sequence[int] = (0, 1, 3, 2),
    block: int = 8,
    chosen: Sequence[int] | None = None,
    tied: bool = False,
    after: bool = False,
    confidence: bool = False,
    causal: bool = False,
    window: int = 0,
    sections: bool = False,
    right: Path | None = None,
    proposes: Sequence[int] = (),
    ctx_train: int = 1024,
    seed: int = 1,
    weight_type: WeightType = "f32",
    edit: Callable[[gguf.GGUFWriter], None] | None = None,
) -> Path:
    """Write a head of `depth` layers for a target of this width and vocabulary, and return its path.

    `layers` are those of which it reads the inputs, `block` the rows of a block, `chosen` the tokens that it
    proposes (all by default). `tied`: it has no embedding and no output of its own. `after`: of a Markov
    head, the first row of a block predicts nothing; `confidence`: it also has an output for how sure it is.
    `window`: of every other layer. `sections`: its positions are those of M-RoPE. `right`: the file of a
    target of `tiny_cycles` about which it is right; with a selector, where that writes tokens of `proposes`.
    """
    if right is not None:
        heads = kv_heads = depth = 1
    writer = new_writer(
        path,
        "dflash",
        name="Tiny block head",
        vocab=vocab,
        layers=depth,
        embd=embd,
        ctx_train=ctx_train,
        weight_type=weight_type,
        chat_template=None,
    )
    _add_attention(writer, embd // heads, heads, kv_heads)
    _add_sight(writer, depth, window, causal=causal)
    if sections:
        writer.add_array("dflash.rope.dimension_sections", [embd // heads // 2, 0, 0, 0])
    writer.add_mask_token_id(MASK)
    writer.add_array("dflash.target_layers", [int(layer) for layer in layers])
    writer.add_uint32("dflash.block_size", block)
    if kind == "markov":
        writer.add_bool("dflash.sample_from_anchor", not after)
        writer.add_bool("dflash.has_confidence_head", confidence)
    if kind == "selector":
        _add_selector(writer, RANK if right is None else embd)
    if edit is not None:
        edit(writer)
    tensors = dict(_random(Weights(embd, seed, 0.5), kind, vocab, len(layers), depth, heads, kv_heads))
    if right is not None:
        tensors |= dict(_knowing(kind, tensors_of(right), proposes))
    if chosen is not None:
        writer.add_tensor("d2t", np.asarray(chosen, np.int64))
        for name in {"output.weight", "markov_w2.weight"} & set(tensors):
            tensors[name] = tensors[name][list(chosen)]
    if confidence:
        tensors["conf_proj.weight"] = Weights(embd, seed + 1, 1.0).matrix(1, embd + RANK)
    left_out = ("token_embd.weight", "output.weight") if tied else ()
    write(writer, (one for one in tensors.items() if one[0] not in left_out), weight_type)
    return path


def _add_attention(writer: gguf.GGUFWriter, head: int, heads: int, kv_heads: int) -> None:
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_rope_dimension_count(head)
    writer.add_rope_freq_base(10000.0)


def _add_sight(writer: gguf.GGUFWriter, depth: int, window: int, *, causal: bool) -> None:
    """What a block's rows see."""
    if window:
        writer.add_sliding_window(window)
        writer.add_array("dflash.attention.sliding_window_pattern", [i % 2 == 0 for i in range(depth)])
    if causal:
        writer.add_bool("dflash.attention.causal", causal)


def _add_selector(writer: gguf.GGUFWriter, rank: int) -> None:
    writer.add_uint32("dflash.conv_kernel_size", KERNEL)
    writer.add_uint32("dflash.conv_group_size", GROUP)
    writer.add_uint32("dflash.selector_rank", rank)
    writer.add_uint32("dflash.selector_top_k", CHOICES)


def tiny_cycles(path: Path, length: int, *, vocab: int = 384) -> Path:
    """Write a target that repeats `length` tokens of neighbouring ids, each after the one before and the
    first after the last.
    """
    follows = [token - token % length + (token + 1) % length for token in range(vocab - vocab % length)]
    follows += range(len(follows), vocab)
    return tiny_llama(path, vocab=vocab, layers=4, mixing=0.0, follows=follows)


def _random(
    weights: Weights, kind: Kind, vocab: int, layers: int, depth: int, heads: int, kv_heads: int
) -> Iterator[Tensor]:
    embd = weights.embd
    head, kv = embd // heads, embd // heads * kv_heads
    yield "fc.weight", weights.matrix(embd, layers * embd)
    yield "enc.output_norm.weight", weights.within(0.5, 1.5, embd)
    yield "output_norm.weight", weights.within(0.5, 1.5, embd)
    yield "token_embd.weight", weights.matrix(vocab, embd, embd**0.5)
    yield "output.weight", weights.matrix(vocab, embd, 3.0)
    for number in range(depth):
        prefix = f"blk.{number}."
        yield prefix + "attn_norm.weight", weights.within(0.5, 1.5, embd)
        yield prefix + "attn_q.weight", weights.matrix(embd, embd)
        yield prefix + "attn_k.weight", weights.matrix(kv, embd)
        yield prefix + "attn_v.weight", weights.matrix(kv, embd)
        yield prefix + "attn_output.weight", weights.matrix(embd, embd, 1.5)
        yield prefix + "attn_q_norm.weight", weights.within(0.5, 1.5, head)
        yield prefix + "attn_k_norm.weight", weights.within(0.5, 1.5, head)
        yield prefix + "ffn_norm.weight", weights.within(0.5, 1.5, embd)
        yield from weights.feed_forward(prefix)
        if kind == "selector":
            for place in ("attn", "ffn"):
                yield f"{prefix}{place}_conv_base", weights.within(-0.5, 0.5, 2, KERNEL, embd)
                columns = 2 * KERNEL * (embd // GROUP)
                yield f"{prefix}{place}_conv_proj.weight", weights.matrix(columns, embd, 0.5)
    if kind == "markov":
        yield "markov_w1.weight", weights.matrix(vocab, RANK, RANK**0.5)
        yield "markov_w2.weight", weights.matrix(vocab, RANK, 2.0)
    if kind == "selector":
        yield "selector_predecessor.weight", weights.matrix(vocab, RANK, RANK**0.5)
        yield "selector_successor.weight", weights.matrix(vocab, RANK, 2.0)
        yield "selector_hidden.weight", weights.matrix(RANK, embd)


def _knowing(kind: Kind, target: dict[str, np.ndarray], proposes: Sequence[int]) -> Iterator[Tensor]:
    """What makes a head right about a target."""
    embedding, output = target["token_embd.weight"], target["output.weight"]
    vocab, embd = embedding.shape
    none = np.zeros((embd, embd), np.float32)
    normed = embedding / np.sqrt((embedding**2).mean(axis=1, keepdims=True) + 1e-5)
    if kind == "markov":
        yield "output.weight", np.zeros_like(output)
        yield "markov_w1.weight", normed
        yield "markov_w2.weight", output
        return
    if kind == "selector":  # all rows are alike, and propose the few tokens that the target writes
        yield "token_embd.weight", np.ones((vocab, embd), np.float32)
        yield "blk.0.attn_output.weight", none
        yield "blk.0.ffn_down.weight", np.zeros((embd, 2 * embd), np.float32)
        yield "output_norm.weight", np.ones(embd, np.float32)
        wanted = np.isin(np.arange(vocab), list(proposes))
        yield (
            "output.weight",
            np.where(wanted[:, None], 1.0, -1.0).repeat(embd, axis=1).astype(np.float32) / embd,
        )
        yield "selector_predecessor.weight", normed
        yield "selector_successor.weight", output
        yield "selector_hidden.weight", np.ones((embd, embd), np.float32) / embd
        return
    yield from _copying(normed)


def _copying(normed: np.ndarray) -> Iterator[Tensor]:
    """Masks that copy the token before them. Two numbers of an embedding say whether it is one of a token or
    of the mask; queries and keys are made of them, in a pair of numbers that positions hardly turn.
    """
    embd = normed.shape[1]
    of_token, of_mask, slow = 0, 1, embd // 2 - 1
    rest = np.eye(embd, dtype=np.float32)
    rest[of_token, of_token] = rest[of_mask, of_mask] = 0.0
    embedding = normed @ rest
    embedding[:, of_token] = embd**0.5
    embedding[MASK] = 0.0
    embedding[MASK, of_mask] = embd**0.5
    query, key = np.zeros((2, embd, embd), np.float32)
    query[slow, of_mask] = query[slow, of_token] = key[slow, of_token] = 1.0
    yield "fc.weight", np.zeros((embd, 4 * embd), np.float32)
    for name in ("blk.0.attn_norm", "output_norm"):
        yield f"{name}.weight", np.ones(embd, np.float32)
    yield "token_embd.weight", embedding
    yield "output.weight", np.float32(3.0) * normed @ rest
    yield "blk.0.attn_q.weight", query
    yield "blk.0.attn_k.weight", key
    yield "blk.0.attn_q_norm.weight", np.full(embd, SHARPNESS / embd**0.5, np.float32)
    yield "blk.0.attn_k_norm.weight", np.ones(embd, np.float32)
    yield "blk.0.attn_v.weight", rest
    yield "blk.0.attn_output.weight", np.float32(4.0) * rest
    yield "blk.0.ffn_down.weight", np.zeros((embd, 2 * embd), np.float32)
