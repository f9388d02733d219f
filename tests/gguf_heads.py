"""Small EAGLE-3 heads as GGUF files: random ones, and ones that are right about a target made for it.

A target whose layers add nothing (`mixing` 0) has a next token that depends on the last one alone: that of
the output matrix times its embedding. A head is right about it (`right`) if what its only layer adds to the
residual, which is the target's hidden states, is the token's embedding less these states. That is what
attention to the row itself can compute, and to nothing else: because rows see only themselves (`window` 1),
or because queries and keys are a token's embedding, which is most similar to itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import gguf
import numpy as np

from gguf_parts import Weights, new_writer, write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from gguf_parts import Tensor, WeightType

SHARPNESS = 30.0
"""How much more a row sees of itself than of others, before the softmax."""


def tiny_eagle3(
    path: Path,
    *,
    vocab: int = 384,
    embd: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    layers: Sequence[int] = (0, 1, 2),
    chosen: Sequence[int] | None = None,
    window: int = 0,
    tied: bool = False,
    right: Path | None = None,
    ctx_train: int = 1024,
    seed: int = 1,
    weight_type: WeightType = "f32",
    split_tensors: int = 0,
    edit: Callable[[gguf.GGUFWriter], None] | None = None,
) -> Path:
    """Write a head for a target of this width and vocabulary, and return its path.

    `layers` are those of which it reads the inputs, `chosen` the tokens that it proposes (all by default).
    `tied`: it has no embedding of its own, and no output if it proposes all tokens. `right`: the file of a
    target (f32, `mixing` 0) about which it is right. `split_tensors` > 0: a split head with that many tensors
    in a file, of which it returns the first.
    """
    if right is not None:
        heads = kv_heads = 1
    writer = new_writer(
        path,
        "eagle3",
        name="Tiny head",
        vocab=vocab,
        layers=1,
        embd=embd,
        ctx_train=ctx_train,
        weight_type=weight_type,
        chat_template=None,
        split_tensors=split_tensors,
    )
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_dimension_count(embd // heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_array("eagle3.target_layers", [int(layer) for layer in layers])
    writer.add_uint32("eagle3.target_hidden_size", embd)
    if right is not None:
        writer.add_bool("eagle3.norm_before_residual", True)
    if window:
        writer.add_uint32("foredraft.window", window)
    if edit is not None:
        edit(writer)
    weights = Weights(embd, seed, 0.15)
    tensors = _right(weights, right, chosen) if right else _random(weights, vocab, chosen, heads, kv_heads)
    left_out = ("token_embd.weight", "output.weight") if chosen is None else ("token_embd.weight",)
    write(writer, (one for one in tensors if not (tied and one[0] in left_out)), weight_type, chosen)
    return path if not split_tensors else min(path.parent.glob(f"{path.stem}-00001-of-*.gguf"))


def next_tokens(target: Path) -> list[int]:
    """The token after each, of a target whose next token depends on the last one alone."""
    stored = tensors_of(target)
    embedding, output = stored["token_embd.weight"], stored["output.weight"]
    normed = embedding / np.sqrt((embedding**2).mean(axis=1, keepdims=True) + 1e-5)
    return [int(token) for token in (normed @ output.T).argmax(axis=1)]


def _random(
    weights: Weights, vocab: int, chosen: Sequence[int] | None, heads: int, kv_heads: int
) -> Iterator[Tensor]:
    embd = weights.embd
    kv = embd // heads * kv_heads
    yield from _norms(weights)
    yield "fc.weight", weights.matrix(embd, 3 * embd)
    yield "token_embd.weight", weights.matrix(vocab, embd, embd**0.5)
    yield "output.weight", weights.matrix(vocab if chosen is None else len(chosen), embd, 3.0)
    yield "blk.0.attn_q.weight", weights.matrix(embd, 2 * embd, 2.0)
    yield "blk.0.attn_k.weight", weights.matrix(kv, 2 * embd, 2.0)
    yield "blk.0.attn_v.weight", weights.matrix(kv, 2 * embd)
    yield "blk.0.attn_output.weight", weights.matrix(embd, embd)
    yield from weights.feed_forward("blk.0.")


def _right(weights: Weights, target: Path, chosen: Sequence[int] | None) -> Iterator[Tensor]:
    embd, stored = weights.embd, tensors_of(target)
    one, none = np.eye(embd, dtype=np.float32), np.zeros((embd, embd), np.float32)
    output = stored["output.weight"]
    yield from _norms(weights)
    yield "fc.weight", weights.matrix(embd, 3 * embd)
    yield "token_embd.weight", stored["token_embd.weight"]
    yield "output.weight", output if chosen is None else output[list(chosen)]
    yield "blk.0.attn_q.weight", np.hstack([SHARPNESS * one, none])
    yield "blk.0.attn_k.weight", np.hstack([one, none])
    yield "blk.0.attn_v.weight", np.hstack([one, -one])
    yield "blk.0.attn_output.weight", one
    yield "blk.0.ffn_gate.weight", weights.matrix(2 * embd, embd)
    yield "blk.0.ffn_up.weight", weights.matrix(2 * embd, embd)
    yield "blk.0.ffn_down.weight", np.zeros((embd, 2 * embd), np.float32)


def _norms(weights: Weights) -> Iterator[Tensor]:
    yield "output_norm.weight", weights.ones()
    for name in ("attn_norm", "attn_norm_2", "ffn_norm"):
        yield f"blk.0.{name}.weight", weights.ones()


def tensors_of(path: Path) -> dict[str, np.ndarray]:
    """A file's matrices, (outputs, inputs)."""
    return {one.name: np.array(one.data) for one in gguf.GGUFReader(path).tensors}
