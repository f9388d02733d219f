"""The tokenizer of small GGUF files: byte-level BPE with a few merges, special tokens and a chat template."""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import pairwise

import gguf

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


def add_tokenizer(writer: gguf.GGUFWriter, vocab: int, chat_template: str | None) -> None:
    """Write a tokenizer of `vocab` token ids, at least SMALLEST_VOCAB."""
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


def token_texts(vocab: int = 384) -> list[bytes]:
    """The bytes of each token id of a model with `vocab` token ids."""
    decode = {char: byte for byte, char in enumerate(_byte_chars())}
    tokens, _ = _vocabulary(vocab)
    return [
        token.encode() if _is_special(token) else bytes(decode[char] for char in token) for token in tokens
    ]


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
