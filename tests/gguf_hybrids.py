"""Small GGUF models with a recurrent state: random weights, real arithmetic (see `gguf_factory`).

`qwen35` (gated delta nets and attention) and `lfm2` (short convolutions and attention) are ones of which
llama.cpp can take back a few tokens (`n_rs_seq`), `falcon-h1` (Mamba-2 beside attention in every layer) and
`mamba2` (nothing else) are ones of which it cannot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gguf_parts import Weights, new_writer, next_layer, write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import gguf

    from gguf_parts import Tensor, WeightType

CONV_KERNEL = 4
"""Positions that the convolution before a recurrent layer sees."""


def tiny_qwen35(
    path: Path,
    *,
    vocab: int = 300,
    layers: int = 4,
    embd: int = 64,
    ctx_train: int = 1024,
    state: int = 32,
    key_heads: int = 2,
    value_heads: int = 4,
    attention_every: int = 2,
    following: int = 0,
    seed: int = 0,
    mixing: float = 0.15,
    weight_type: WeightType = "q8_0",
) -> Path:
    """Write a Qwen3.5: gated delta nets, and attention in every `attention_every`-th layer. After them come
    `following` layers for multi-token prediction. What these add to the embedding of their token is scaled by
    `mixing`, too, so that at 0 they predict what the others do.
    """
    heads, head = 4, 32
    writer = new_writer(
        path,
        "qwen35",
        name="Tiny hybrid",
        vocab=vocab,
        layers=layers + following,
        embd=embd,
        ctx_train=ctx_train,
        weight_type=weight_type,
    )
    if following:
        writer.add_uint32("qwen35.nextn_predict_layers", following)
    writer.add_head_count(heads)
    writer.add_head_count_kv(2)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_rope_dimension_count(head // 2)
    writer.add_rope_dimension_sections([3, 3, 2, 0])
    writer.add_rope_freq_base(10000.0)
    writer.add_uint32("qwen35.full_attention_interval", attention_every)
    _add_ssm(writer, inner=state * value_heads, state=state, rank=value_heads, groups=key_heads)
    weights = Weights(embd, seed, mixing)
    mixed = state * (2 * key_heads + value_heads)

    def layer(number: int) -> Iterator[Tensor]:
        prefix = f"blk.{number}."
        yield prefix + "attn_norm.weight", weights.ones()
        yield prefix + "post_attention_norm.weight", weights.ones()
        if number >= layers:
            yield from next_layer(prefix, weights)
        if number >= layers or (number + 1) % attention_every == 0:
            yield prefix + "attn_q.weight", weights.matrix(2 * heads * head, embd, 2.0)
            yield prefix + "attn_k.weight", weights.matrix(2 * head, embd, 2.0)
            yield prefix + "attn_v.weight", weights.matrix(2 * head, embd)
            yield prefix + "attn_q_norm.weight", weights.ones(head)
            yield prefix + "attn_k_norm.weight", weights.ones(head)
            yield prefix + "attn_output.weight", weights.matrix(embd, heads * head, 4.0 * mixing)
        else:
            yield prefix + "attn_qkv.weight", weights.matrix(mixed, embd)
            yield prefix + "attn_gate.weight", weights.matrix(state * value_heads, embd)
            yield prefix + "ssm_conv1d.weight", weights.matrix(mixed, CONV_KERNEL, 2.0)
            yield prefix + "ssm_dt.bias", weights.within(-4.0, -1.0, value_heads)
            yield prefix + "ssm_a", -weights.within(0.5, 2.0, value_heads)
            yield prefix + "ssm_beta.weight", weights.matrix(value_heads, embd)
            yield prefix + "ssm_alpha.weight", weights.matrix(value_heads, embd)
            yield prefix + "ssm_norm.weight", weights.ones(state)
            yield prefix + "ssm_out.weight", weights.matrix(embd, state * value_heads, 4.0 * mixing)
        yield from weights.feed_forward(prefix)

    write(writer, weights.model(vocab, layers + following, layer), weight_type)
    return path


def tiny_lfm2(
    path: Path,
    *,
    vocab: int = 300,
    embd: int = 64,
    ctx_train: int = 1024,
    seed: int = 0,
    mixing: float = 0.15,
    weight_type: WeightType = "q8_0",
) -> Path:
    """Write an LFM2 of three layers: two short convolutions with attention between them."""
    heads, head, kv_heads = 2, embd // 2, [0, 1, 0]
    writer = new_writer(
        path,
        "lfm2",
        name="Tiny convolutional hybrid",
        vocab=vocab,
        layers=3,
        embd=embd,
        ctx_train=ctx_train,
        weight_type=weight_type,
    )
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_uint32("lfm2.shortconv.l_cache", CONV_KERNEL - 1)
    weights = Weights(embd, seed, mixing)

    def layer(number: int) -> Iterator[Tensor]:
        prefix = f"blk.{number}."
        yield prefix + "attn_norm.weight", weights.ones()
        if kv_heads[number]:
            yield prefix + "attn_q.weight", weights.matrix(heads * head, embd, 2.0)
            yield prefix + "attn_k.weight", weights.matrix(head, embd, 2.0)
            yield prefix + "attn_v.weight", weights.matrix(head, embd)
            yield prefix + "attn_q_norm.weight", weights.ones(head)
            yield prefix + "attn_k_norm.weight", weights.ones(head)
            yield prefix + "attn_output.weight", weights.matrix(embd, heads * head, 2.0 * mixing)
        else:
            yield prefix + "shortconv.conv.weight", weights.matrix(embd, CONV_KERNEL - 1, 2.0)
            yield prefix + "shortconv.in_proj.weight", weights.matrix(3 * embd, embd)
            yield prefix + "shortconv.out_proj.weight", weights.matrix(embd, embd, 4.0 * mixing)
        yield prefix + "ffn_norm.weight", weights.ones()
        yield from weights.feed_forward(prefix)

    tensors = weights.model(vocab, 3, layer)
    named = (("token_embd_norm.weight" if name == "output_norm.weight" else name, w) for name, w in tensors)
    write(writer, named, weight_type)
    return path


def tiny_falcon_h1(
    path: Path,
    *,
    vocab: int = 300,
    layers: int = 2,
    embd: int = 64,
    ctx_train: int = 1024,
    seed: int = 0,
    mixing: float = 0.15,
    weight_type: WeightType = "q8_0",
) -> Path:
    """Write a Falcon-H1: Mamba-2 and attention side by side in every layer."""
    heads, head = 2, 32
    writer = new_writer(
        path,
        "falcon-h1",
        name="Tiny parallel hybrid",
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
    writer.add_rope_dimension_count(head)
    writer.add_rope_freq_base(10000.0)
    _add_ssm(writer, inner=2 * embd, state=16, rank=4, groups=1)
    weights = Weights(embd, seed, mixing)

    def layer(number: int) -> Iterator[Tensor]:
        prefix = f"blk.{number}."
        yield prefix + "attn_norm.weight", weights.ones()
        yield prefix + "attn_q.weight", weights.matrix(heads * head, embd, 2.0)
        yield prefix + "attn_k.weight", weights.matrix(head, embd, 2.0)
        yield prefix + "attn_v.weight", weights.matrix(head, embd)
        yield prefix + "attn_output.weight", weights.matrix(embd, heads * head, 2.0 * mixing)
        yield from _mamba2(weights, prefix, inner=2 * embd, state=16, rank=4, groups=1)
        yield prefix + "ffn_norm", weights.ones()  # without a suffix: so llama.cpp wants it
        yield from weights.feed_forward(prefix)

    write(writer, weights.model(vocab, layers, layer), weight_type)
    return path


def tiny_mamba2(
    path: Path,
    *,
    vocab: int = 300,
    layers: int = 3,
    embd: int = 64,
    ctx_train: int = 1024,
    seed: int = 0,
    mixing: float = 0.15,
    weight_type: WeightType = "q8_0",
) -> Path:
    """Write a Mamba-2: a recurrent state and nothing else."""
    writer = new_writer(
        path,
        "mamba2",
        name="Tiny recurrent",
        vocab=vocab,
        layers=layers,
        embd=embd,
        ctx_train=ctx_train,
        weight_type=weight_type,
    )
    _add_ssm(writer, inner=2 * embd, state=16, rank=4, groups=1)
    weights = Weights(embd, seed, mixing)

    def layer(number: int) -> Iterator[Tensor]:
        prefix = f"blk.{number}."
        yield prefix + "attn_norm.weight", weights.ones()
        yield from _mamba2(weights, prefix, inner=2 * embd, state=16, rank=4, groups=1)

    write(writer, weights.model(vocab, layers, layer), weight_type)
    return path


def _mamba2(
    weights: Weights, prefix: str, *, inner: int, state: int, rank: int, groups: int
) -> Iterator[Tensor]:
    convolved = inner + 2 * groups * state
    yield prefix + "ssm_in.weight", weights.matrix(inner + convolved + rank, weights.embd)
    yield prefix + "ssm_conv1d.weight", weights.matrix(convolved, CONV_KERNEL, 2.0)
    yield prefix + "ssm_conv1d.bias", weights.within(-0.1, 0.1, convolved)
    yield prefix + "ssm_dt.bias", weights.within(-4.0, -1.0, rank)
    yield prefix + "ssm_a", -weights.within(0.5, 2.0, rank, 1)
    yield prefix + "ssm_d", weights.ones(rank, 1)
    yield prefix + "ssm_norm.weight", weights.ones(groups, inner // groups)
    yield prefix + "ssm_out.weight", weights.matrix(weights.embd, inner, 4.0 * weights.mixing)


def _add_ssm(writer: gguf.GGUFWriter, *, inner: int, state: int, rank: int, groups: int) -> None:
    writer.add_ssm_conv_kernel(CONV_KERNEL)
    writer.add_ssm_inner_size(inner)
    writer.add_ssm_state_size(state)
    writer.add_ssm_time_step_rank(rank)
    writer.add_ssm_group_count(groups)
