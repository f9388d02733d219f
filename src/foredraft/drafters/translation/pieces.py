"""Text split into a tokenizer's tokens, with the end position of each token in bytes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate

from foredraft.protocols import Tokenizer

SAMPLE = (
    "Hello there,  world!\n\n\tdef f(x):\n    return 3.14 * x\n"
    "– “Grüße” … naïve, Привет, 漢字とかな, مرحبا, 👩‍👧 1234567"
)
"""Text that a tokenizer must reproduce for translation to be possible."""


@dataclass(slots=True)
class Pieces:
    """Tokens and, for each, the offset of the byte after it. Tokens may be empty."""

    tokens: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.tokens)

    def extend(self, other: Pieces, first: int = 0, *, shift: int = 0) -> None:
        """Append the other's tokens from its `first` on, with `shift` added to their ends."""
        self.tokens += other.tokens[first:]
        self.ends += [end + shift for end in other.ends[first:]]

    def cut(self, count: int) -> None:
        """Keep the first `count` tokens."""
        del self.tokens[count:], self.ends[count:]

    def after(self, offset: int) -> int | None:
        """The number of tokens before the byte at `offset`; None if a token spans it."""
        count = bisect_right(self.ends, offset)
        return count if (self.ends[count - 1] if count else 0) == offset else None


def encode(tokenizer: Tokenizer, text: str) -> Pieces:
    """The tokens of `text`, each with its end in the text's UTF-8 bytes.

    A tokenizer may add a space before every text (llama.cpp's SentencePiece does): it belongs to no byte. If
    it does not reproduce the text (it normalises, or has no byte tokens), only the end of the whole text is
    known, and every token gets it.
    """
    tokens = tokenizer.encode(text)
    raw = text.encode()
    parts = [tokenizer.token_bytes(token) for token in tokens]
    joined = b"".join(parts)
    if joined == raw:
        return Pieces(tokens, list(accumulate(map(len, parts))))
    if joined == b" " + raw:
        return Pieces(tokens, [end - 1 for end in accumulate(map(len, parts))])
    return Pieces(tokens, [len(raw)] * len(tokens))


def texts(data: bytes) -> Iterator[tuple[int, str]]:
    """The parts of `data` that are text, each with its offset.

    Bytes that are not UTF-8 are left out, and so is an incomplete character at the end.
    """
    at = 0
    while at < len(data):
        try:
            yield at, data[at:].decode()
        except UnicodeDecodeError as error:
            if error.start:
                yield at, data[at : at + error.start].decode()
            at += error.end
        else:
            return


def encode_bytes(tokenizer: Tokenizer, data: bytes) -> Pieces:
    """The tokens of the text in `data`, with their ends in it."""
    pieces = Pieces()
    for offset, text in texts(data):
        pieces.extend(encode(tokenizer, text), shift=offset)
    return pieces


def unfinished(data: bytes) -> int:
    """The number of bytes at the end of `data` that are the beginning of an incomplete character."""
    for count in range(1, min(4, len(data) + 1)):
        byte = data[-count]
        if byte < 0x80:
            return 0
        if byte >= 0xC0:
            length = 0 if byte < 0xC2 or byte > 0xF4 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return count if count < length else 0
    return 0


def gives_text_back(tokenizer: Tokenizer) -> bool:
    """Whether the tokenizer reproduces text, tested on a sample of many scripts."""
    raw = SAMPLE.encode()
    joined = b"".join(map(tokenizer.token_bytes, tokenizer.encode(SAMPLE)))
    return joined in (raw, b" " + raw)
