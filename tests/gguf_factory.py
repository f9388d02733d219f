"""Small GGUF files made on the spot: models that llama.cpp loads, and files that it must refuse.

Weights are random but fixed by `seed`, so the text is noise; what is real is everything around it: the
byte-level BPE tokenizer, the special tokens, the chat template, the tensor layout and the arithmetic.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import gguf
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy.typing as npt

WeightType = Literal["f32", "f16", "q8_0", "q4_0"]

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Token ids 0, 1 and 2; bytes follow from `FIRST_BYTE`, merged tokens after them."""
END_OF_TEXT, IM_START, IM_END = range(3)
FIRST_BYTE = len(SPECIAL_TOKENS)
SMALLEST_VOCAB = FIRST_BYTE + 256 + 1
"""The bytes and one merge: llama.cpp refuses this tokenizer without any."""

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

CORPUS = """
The quick brown fox jumps over the lazy dog and then the other dog looks at the fox for a while.
There is more than one way to do it, and there are other ways that one can think of with some thought.
She said that they would come back when the rain was over, but the rain went on through the night.
def add(first, second):
    return first + second
for index in range(10):
    print(index, add(index, index + 1))
Numbers such as 100, 200 and 1000 are here as well; so are the words user, assistant and system.
"""
"""What the merges are learned from."""


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
) -> Path:
    """Write a Llama that llama.cpp loads and runs (about 0.5 MB with f32 weights), and return its path.

    `vocab` is the number of token ids, at least SMALLEST_VOCAB; two models share the ids they both have.
    `mixing` is how much attention and feed-forward add to the last token's embedding: at 0.15 greedy text
    falls into loops with variations, so that drafters find something; at 1 it hardly repeats at all.
    `infill` are the tokens around a gap. With q8_0 and q4_0 weights `embd` must be a multiple of 32.
    `split_tensors` > 0 writes a split model with that many tensors in a file and returns the first part.
    """
    writer = gguf.GGUFWriter(path, "llama", split_max_tensors=split_tensors)
    writer.add_name(name)
    writer.add_file_type(_file_type(weight_type))
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    shape = _Shape(vocab, layers, embd, heads, kv_heads)
    _add_hyperparameters(writer, shape, ctx_train)
    _add_tokenizer(writer, vocab, chat_template)
    for place, token in zip(("pre", "suf", "mid"), infill or (), strict=False):
        writer.add_uint32(f"tokenizer.ggml.fim_{place}_token_id", token)
    for tensor, weights in _llama_weights(shape, seed, mixing):
        _add_tensor(writer, tensor, weights, weight_type)
    _write(writer)
    return path if not split_tensors else min(path.parent.glob(f"{path.stem}-00001-of-*.gguf"))


def vocab_only(path: Path, *, vocab: int = 384) -> Path:
    """Write a valid GGUF file that holds a tokenizer and no weights."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("Vocabulary")
    _add_hyperparameters(writer, _Shape(vocab, layers=2, embd=64, heads=4, kv_heads=2), 512)
    _add_tokenizer(writer, vocab, None)
    _write(writer)
    return path


def unknown_architecture(path: Path, *, architecture: str = "nonesuch") -> Path:
    """Write a valid GGUF file with weights, of an architecture that llama.cpp does not know."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("Nonesuch")
    writer.add_context_length(512)
    writer.add_block_count(1)
    _add_tokenizer(writer, SMALLEST_VOCAB, None)
    writer.add_tensor("token_embd.weight", np.ones((SMALLEST_VOCAB, 32), dtype=np.float32))
    _write(writer)
    return path


def truncated(src: Path, dst: Path, *, keep: float = 0.5) -> Path:
    """Write the first `keep` (0..1) of `src`'s bytes to `dst`: a download that broke off."""
    data = src.read_bytes()
    dst.write_bytes(data[: int(len(data) * keep)])
    return dst


def not_gguf(path: Path) -> Path:
    """Write a file that is no GGUF, whatever it is called."""
    path.write_bytes(b"<!DOCTYPE html><title>This is not the model you are looking for</title>\n" * 100)
    return path


def token_texts(vocab: int = 384) -> list[bytes]:
    """The bytes of each token id of a model with `vocab` token ids."""
    decode = {char: byte for byte, char in enumerate(_byte_chars())}
    tokens, _ = _vocabulary(vocab)
    return [
        token.encode() if _is_special(token) else bytes(decode[char] for char in token) for token in tokens
    ]


# --- weights -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Shape:
    vocab: int
    layers: int
    embd: int
    heads: int
    kv_heads: int


def _add_hyperparameters(writer: gguf.GGUFWriter, shape: _Shape, ctx_train: int) -> None:
    writer.add_context_length(ctx_train)
    writer.add_embedding_length(shape.embd)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(2 * shape.embd)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_rope_dimension_count(shape.embd // shape.heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(shape.vocab)


def _llama_weights(shape: _Shape, seed: int, mixing: float) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    """Name and weights of every tensor, (outputs, inputs), at scales that keep activations near 1.

    The output matrix is scaled so that logits have a standard deviation of about 3: peaked enough that
    greedy text is stable under rounding, flat enough that sampling has something to choose from.
    """
    rng = np.random.default_rng(seed)

    def normal(rows: int, columns: int, scale: float = 1.0) -> npt.NDArray[np.float32]:
        return rng.standard_normal((rows, columns), dtype=np.float32) * np.float32(scale / columns**0.5)

    embd, ffn = shape.embd, 2 * shape.embd
    kv = embd // shape.heads * shape.kv_heads
    ones = np.ones(embd, dtype=np.float32)
    yield "token_embd.weight", normal(shape.vocab, embd, embd**0.5)
    for layer in range(shape.layers):
        prefix = f"blk.{layer}."
        yield prefix + "attn_norm.weight", ones
        yield prefix + "attn_q.weight", normal(embd, embd, 2.0)
        yield prefix + "attn_k.weight", normal(kv, embd, 2.0)
        yield prefix + "attn_v.weight", normal(kv, embd)
        yield prefix + "attn_output.weight", normal(embd, embd, 2.0 * mixing)
        yield prefix + "ffn_norm.weight", ones
        yield prefix + "ffn_gate.weight", normal(ffn, embd)
        yield prefix + "ffn_up.weight", normal(ffn, embd)
        yield prefix + "ffn_down.weight", normal(embd, ffn, 2.0 * mixing)
    yield "output_norm.weight", ones
    yield "output.weight", normal(shape.vocab, embd, 3.0)


def _add_tensor(
    writer: gguf.GGUFWriter, name: str, weights: npt.NDArray[np.float32], weight_type: WeightType
) -> None:
    if weights.ndim == 1 or weight_type == "f32":
        writer.add_tensor(name, weights)
        return
    kind = gguf.GGMLQuantizationType[weight_type.upper()]
    writer.add_tensor(name, gguf.quantize(weights, kind), raw_dtype=kind)


def _file_type(weight_type: WeightType) -> int:
    names = {"f32": "ALL_F32", "f16": "MOSTLY_F16", "q8_0": "MOSTLY_Q8_0", "q4_0": "MOSTLY_Q4_0"}
    return int(gguf.LlamaFileType[names[weight_type]])


def _write(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


# --- tokenizer -----------------------------------------------------------------------------------------


def _add_tokenizer(writer: gguf.GGUFWriter, vocab: int, chat_template: str | None) -> None:
    tokens, merges = _vocabulary(vocab)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    control, normal = int(gguf.TokenType.CONTROL), int(gguf.TokenType.NORMAL)
    writer.add_token_types([control if _is_special(token) else normal for token in tokens])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(IM_START)
    writer.add_eos_token_id(IM_END)
    writer.add_unk_token_id(END_OF_TEXT)
    writer.add_pad_token_id(IM_END)
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(False)
    if chat_template is not None:
        writer.add_chat_template(chat_template)


@cache
def _vocabulary(vocab: int) -> tuple[list[str], list[str]]:
    """Tokens by id and the merges, in GPT-2's notation (every byte a printable character).

    Ids that the corpus has no merge for are reserved special tokens.
    """
    if vocab < SMALLEST_VOCAB:
        raise ValueError(f"vocab must be at least {SMALLEST_VOCAB}: {vocab}")
    pairs = _learn_merges(vocab - FIRST_BYTE - 256)
    tokens = [*SPECIAL_TOKENS, *_byte_chars(), *(left + right for left, right in pairs)]
    tokens += [f"<|reserved_{token}|>" for token in range(len(tokens), vocab)]
    return tokens, [f"{left} {right}" for left, right in pairs]


def _is_special(token: str) -> bool:
    return token.startswith("<|") and token.endswith("|>")


def _learn_merges(count: int) -> list[tuple[str, str]]:
    """Plain byte-pair encoding of CORPUS: the most frequent pair first, ties in alphabetical order.

    At most `count` merges; the corpus runs out at about 200.
    """
    chars = _byte_chars()
    words = Counter(
        tuple(chars[byte] for byte in word.encode())
        for line in CORPUS.splitlines()
        for word in line.replace(" ", "\n ").split("\n")
        if word
    )
    merges: list[tuple[str, str]] = []
    seen = set(chars)
    while len(merges) < count:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, times in words.items():
            for pair in pairwise(word):
                pairs[pair] += times
        best = min(
            (pair for pair in pairs if pair[0] + pair[1] not in seen),
            key=lambda pair: (-pairs[pair], pair),
            default=None,
        )
        if best is None:
            break
        merges.append(best)
        seen.add(best[0] + best[1])
        merged: Counter[tuple[str, ...]] = Counter()
        for word, times in words.items():
            merged[_merge(word, best)] += times
        words = merged
    return merges


def _merge(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    merged: list[str] = []
    for char in word:
        if merged and (merged[-1], char) == pair:
            merged[-1] += char
        else:
            merged.append(char)
    return tuple(merged)


@cache
def _byte_chars() -> list[str]:
    """GPT-2's character for each byte: printable Latin-1 stands for itself, the rest follow from U+0100."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]
