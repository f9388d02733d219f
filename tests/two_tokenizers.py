"""Made-up byte-level tokenizers that cut the same text differently, and models that speak through them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from foredraft.templates.control_texts import NO_CONTROL_TEXTS, Span
from foredraft.templates.traits import TemplateTraits
from foredraft.testing import FakeModel
from foredraft.types import Logits, Message

TEXT = (
    "the cat sat on the mat, and then the other cat sat there: “naïve” 漢字 🙂 … "
    "if x == 10:\n    return the_cat[0]\n\nПривет, the end. "
)
"""What the models below say, over and over."""


class WordTokenizer:
    """All bytes, and the `words`; text is cut greedily into the longest of them.

    Ids run backwards for `reverse`, so that equal ids mean nothing. The last id ends a text, the one before
    it is a control token written `<sep>`.
    """

    chat_template: str | None = "{% for message in messages %}<sep>{{ message.content }}{% endfor %}"
    template_traits = TemplateTraits()
    control_texts = NO_CONTROL_TEXTS
    infill_tokens: tuple[int, int, int] | None = None

    def __init__(self, words: Sequence[str], *, reverse: bool = False) -> None:
        pieces = [bytes([byte]) for byte in range(256)] + [word.encode() for word in words]
        self._pieces = pieces[::-1] if reverse else pieces
        self._ids = {piece: token for token, piece in enumerate(self._pieces)}
        self._longest = max(map(len, pieces))
        self.vocab_size = len(pieces) + 2
        self.separator = len(pieces)
        self.end_tokens = frozenset({len(pieces) + 1})

    def encode(self, text: str, *, special: bool = False, add_bos: bool = False) -> list[int]:
        if special and "<sep>" in text:
            head, _, tail = text.partition("<sep>")
            return [*self.encode(head), self.separator, *self.encode(tail, special=True)]
        return self.cut(text.encode())

    def encode_rendered(self, text: str, literal: Sequence[Span], *, begins: bool = True) -> list[int]:
        return self.encode(text, special=True, add_bos=True)

    def cut(self, raw: bytes) -> list[int]:
        """Any bytes in tokens, the longest first."""
        tokens = list[int]()
        while raw:
            token = self.longest(raw)
            tokens.append(token)
            raw = raw[len(self._pieces[token]) :]
        return tokens

    def longest(self, raw: bytes) -> int:
        """The longest token that the bytes begin with."""
        lengths = range(min(self._longest, len(raw)), 0, -1)
        return next(self._ids[raw[:n]] for n in lengths if raw[:n] in self._ids)

    def token_bytes(self, token: int) -> bytes:
        return self._pieces[token] if token < len(self._pieces) else b""

    def apply_chat_template(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True, **variables: object
    ) -> str:
        return "".join(f"<sep>{message['content']}" for message in messages)


class PrefixingTokenizer(WordTokenizer):
    """Writes a space before every text, as SentencePiece does."""

    def encode(self, text: str, *, special: bool = False, add_bos: bool = False) -> list[int]:
        return super().encode(" " + text, special=special) if text else []


COARSE = WordTokenizer(
    ["the", " the", " cat", " sat", "the cat", " sat on", "漢字", "🙂", "    ", "Пр", "ет"]
)
"""Long tokens, of several words and of whole characters."""
FINE = WordTokenizer(
    ["th", "he", " c", "at", " s", " a", "nd", "漢", "字", "🙂"[:1], " o", "Пр"], reverse=True
)
"""Short tokens in another order."""
WORDS = WordTokenizer(["the", "cat", " cat", " the", " sat", " on", " mat", "other", "    ", "return"])
BYTES = WordTokenizer([])
ALL = {"coarse": COARSE, "fine": FINE, "words": WORDS, "bytes": BYTES}


def text_of(tokenizer: WordTokenizer, tokens: Sequence[int]) -> bytes:
    return b"".join(map(tokenizer.token_bytes, tokens))


def speaker(
    tokenizer: WordTokenizer, text: str = TEXT, *, sure: float = 12.0, name: str = "speaker"
) -> FakeModel:
    """A model that writes `text` over and over in its tokenizer's tokens: after n bytes of whatever it goes
    on at byte n. The token that fits is `sure` nats above all others.
    """
    raw = text.encode()

    def logits(prefix: Sequence[int]) -> Logits:
        row = np.zeros(tokenizer.vocab_size, np.float32)
        at = len(text_of(tokenizer, prefix)) % len(raw)
        row[tokenizer.longest((raw + raw)[at : at + 20])] = sure
        return row

    model = FakeModel(tokenizer.vocab_size, logits=logits, name=name)
    model.tokenizer = tokenizer  # type: ignore[assignment]
    model.info = replace(model.info, vocab_hash=f"{name} {id(tokenizer)}")
    return model
