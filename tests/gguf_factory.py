"""Small GGUF files made on the spot: models that llama.cpp loads, and files that it must refuse.

Weights are random but fixed by `seed`, so the text is noise; what is real is everything around it: the
byte-level BPE tokenizer, the special tokens, the chat template, the tensor layout and the arithmetic. Models
with a recurrent state are in `gguf_hybrids`; what all files are made of is in `gguf_parts`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gguf_parts import Weights, WeightType, new_writer, write
from gguf_tokenizer import (
    CHAT_TEMPLATE,
    CORPUS,
    END_OF_TEXT,
    FIRST_BYTE,
    IM_END,
    IM_START,
    SMALLEST_VOCAB,
    SPECIAL_TOKENS,
    token_texts,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import gguf

    from gguf_parts import Tensor

__all__ = [
    "CHAT_TEMPLATE",
    "CORPUS",
    "END_OF_TEXT",
    "FIRST_BYTE",
    "IM_END",
    "IM_START",
    "SMALLEST_VOCAB",
    "SPECIAL_TOKENS",
    "WeightType",
    "not_gguf",
    "tiny_llama",
    "token_texts",
    "truncated",
    "unknown_architecture",
    "vocab_only",
]


def tiny_llama(
    path: Path,
    *,
    vocab: int = 384,
    layers: int = 2,
    embd: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    ctx_train: int = 512,
    seed: int = 0,
    mixing: float = 0.15,
    weight_type: WeightType = "f32",
    name: str = "Tiny Llama",
    chat_template: str | None = CHAT_TEMPLATE,
    infill: tuple[int, int, int] | None = None,
    split_tensors: int = 0,
    follows: Sequence[int] | None = None,
    edit: Callable[[gguf.GGUFWriter], None] | None = None,
) -> Path:
    """Write a Llama that llama.cpp loads and runs (about 0.5 MB with f32 weights), and return its path.

    `vocab` is the number of token ids, at least SMALLEST_VOCAB; two models share the ids they both have.
    `mixing` is how much attention and feed-forward add to the last token's embedding: at 0.15 greedy text
    falls into loops with variations, so that drafters find something; at 1 it hardly repeats at all.
    `infill` are the tokens around a gap. With q8_0 and q4_0 weights `embd` must be a multiple of 32.
    `split_tensors` > 0 writes a split model with that many tensors in a file and returns the first part.
    `follows`: with `mixing` 0, the token that comes after each: every token, once. `edit` changes what the
    header will hold.
    """
    writer = new_writer(
        path,
        "llama",
        name=name,
        vocab=vocab,
        layers=layers,
        embd=embd,
        ctx_train=ctx_train,
        weight_type=weight_type,
        chat_template=chat_template,
        split_tensors=split_tensors,
    )
    _add_attention(writer, embd, heads, kv_heads)
    for place, token in zip(("pre", "suf", "mid"), infill or (), strict=False):
        writer.add_uint32(f"tokenizer.ggml.fim_{place}_token_id", token)
    if edit is not None:
        edit(writer)
    weights, kv = Weights(embd, seed, mixing), embd // heads * kv_heads

    def layer(number: int) -> Iterator[Tensor]:
        prefix = f"blk.{number}."
        yield prefix + "attn_norm.weight", weights.ones()
        yield prefix + "attn_q.weight", weights.matrix(embd, embd, 2.0)
        yield prefix + "attn_k.weight", weights.matrix(kv, embd, 2.0)
        yield prefix + "attn_v.weight", weights.matrix(kv, embd)
        yield prefix + "attn_output.weight", weights.matrix(embd, embd, 2.0 * mixing)
        yield prefix + "ffn_norm.weight", weights.ones()
        yield from weights.feed_forward(prefix)

    tensors = dict(weights.model(vocab, layers, layer))
    if follows is not None:
        tensors["output.weight"][list(follows)] = 3.0 * tensors["token_embd.weight"] / embd**0.5
    write(writer, tensors.items(), weight_type)
    return path if not split_tensors else min(path.parent.glob(f"{path.stem}-00001-of-*.gguf"))


def vocab_only(path: Path, *, vocab: int = 384) -> Path:
    """Write a valid GGUF file that holds a tokenizer and no weights."""
    writer = new_writer(
        path, "llama", name="Vocabulary", vocab=vocab, layers=2, embd=64, ctx_train=512, chat_template=None
    )
    _add_attention(writer, embd=64, heads=4, kv_heads=2)
    write(writer)
    return path


def unknown_architecture(path: Path, *, architecture: str = "nonesuch") -> Path:
    """Write a valid GGUF file with weights, of an architecture that llama.cpp does not know."""
    vocab, embd = SMALLEST_VOCAB, 32
    writer = new_writer(
        path,
        architecture,
        name="Nonesuch",
        vocab=vocab,
        layers=1,
        embd=embd,
        ctx_train=512,
        chat_template=CHAT_TEMPLATE,
    )
    write(writer, [("token_embd.weight", np.ones((vocab, embd), dtype=np.float32))])
    return path


def _add_attention(writer: gguf.GGUFWriter, embd: int, heads: int, kv_heads: int) -> None:
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_dimension_count(embd // heads)
    writer.add_rope_freq_base(10000.0)


def truncated(src: Path, dst: Path, *, keep: float = 0.5) -> Path:
    """Write the first `keep` (0..1) of `src`'s bytes to `dst`: a download that broke off."""
    data = src.read_bytes()
    dst.write_bytes(data[: int(len(data) * keep)])
    return dst


def not_gguf(path: Path) -> Path:
    """Write a file that is no GGUF, whatever it is called."""
    path.write_bytes(b"<!DOCTYPE html><title>This is not the model you are looking for</title>\n" * 100)
    return path
