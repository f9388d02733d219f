"""The vocabulary of a GGUF: text to token ids, token ids to bytes, and the chat template."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from functools import cached_property, partial
from threading import Lock
from typing import Any

from foredraft.backends.llamacpp import abi
from foredraft.backends.llamacpp.binding import lib
from foredraft.backends.llamacpp.deep_stack import with_room_for
from foredraft.errors import BackendError, RequestError
from foredraft.templates.chat import ChatTemplate
from foredraft.templates.control_texts import ControlTexts, Span
from foredraft.templates.traits import TemplateTraits
from foredraft.types import Message

_PIECE_BYTES = 64

LONG = 1 << 16
"""Size in bytes from which texts are encoded one at a time: a megabyte takes a processor from the forwards
for seconds.
"""

_one_long_text = Lock()

_ON_REQUEST = abi.LLAMA_TOKEN_ATTR_CONTROL | abi.LLAMA_TOKEN_ATTR_UNKNOWN
"""Kinds of tokens that are only recognised in a text on request."""


class LlamaCppTokenizer:
    """A Tokenizer for llama.cpp's vocabulary. Token bytes are cached: decoding needs them for every token."""

    def __init__(self, model: Any, template: str | None) -> None:
        self._open_vocab: Any = lib.llama_model_get_vocab(model)
        self.chat_template = template
        self.vocab_size = int(lib.llama_vocab_n_tokens(self._vocab))
        self.bos = int(lib.llama_vocab_bos(self._vocab))
        self._adds_bos = bool(lib.llama_vocab_get_add_bos(self._vocab)) and self.bos >= 0
        self.end_tokens = frozenset(
            token for token in range(self.vocab_size) if lib.llama_vocab_is_eog(self._vocab, token)
        )
        self.infill_tokens = _infill_tokens(self._vocab)
        self._pieces: dict[int, bytes] = {}
        named = {name: self.token_text(token) for name, token in _named_tokens(self._vocab).items()}
        self._template = ChatTemplate(template, **named)

    @property
    def _vocab(self) -> Any:
        if self._open_vocab is None:
            raise BackendError("The model of this tokenizer is closed.", hint="Load it again.")
        return self._open_vocab

    def close(self) -> None:
        """Detach from the vocabulary, which is freed with the model."""
        self._open_vocab = None

    def hash(self) -> str:
        """Identifies the vocabulary."""
        return vocabulary_hash(self._vocab)

    def token_text(self, token: int) -> str:
        """A token's spelling in the vocabulary, also for control tokens; "" if there is none."""
        if not 0 <= token < self.vocab_size:
            return ""
        return self._piece(token, special=True).decode("utf-8", "replace")

    def encode(self, text: str, *, special: bool = False, add_bos: bool = False) -> list[int]:
        return self._encode([(text, special)], add_bos=add_bos)

    def encode_rendered(self, text: str, literal: Sequence[Span], *, begins: bool = True) -> list[int]:
        parts = self.control_texts.parts(text, literal) if literal else [(text, True)]
        return self._encode(parts, add_bos=begins)

    def _encode(self, parts: Iterable[tuple[str, bool]], *, add_bos: bool) -> list[int]:
        """Token ids of a text given in parts, each with whether special tokens are recognised in it."""
        ids: list[int] = []
        for text, special in parts:
            ids += with_room_for(text, partial(self._split, text, special=special))
        if add_bos and self._adds_bos and ids[:1] != [self.bos]:
            ids.insert(0, self.bos)
        return ids

    def _split(self, text: str, *, special: bool) -> list[int]:
        raw = text.encode("utf-8", "surrogatepass")
        capacity = len(raw) + 2
        tokens = (abi.llama_token * capacity)()
        with _one_long_text if len(raw) > LONG else nullcontext():
            count = lib.llama_tokenize(self._vocab, raw, len(raw), tokens, capacity, False, special)  # noqa: FBT003 - C
        if count < 0:
            raise BackendError(f"llama.cpp could not tokenise a text of {len(raw)} bytes.")
        found: list[int] = tokens[:count]
        return found

    @cached_property
    def control_texts(self) -> ControlTexts:
        """The texts of control tokens, with whether llama.cpp consumes the white space around them."""
        attributes = {token: lib.llama_vocab_get_attr(self._vocab, token) for token in range(self.vocab_size)}
        found = {self._text(token): kind for token, kind in attributes.items() if kind & _ON_REQUEST}
        return ControlTexts(
            found,
            lstrip=[text for text, kind in found.items() if kind & abi.LLAMA_TOKEN_ATTR_LSTRIP],
            rstrip=[text for text, kind in found.items() if kind & abi.LLAMA_TOKEN_ATTR_RSTRIP],
        )

    def _text(self, token: int) -> str:
        return (lib.llama_vocab_get_text(self._vocab, token) or b"").decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes:
        piece = self._pieces.get(token)
        if piece is None:
            if not 0 <= token < self.vocab_size:  # llama.cpp would end the process
                raise RequestError(f"There is no token {token}.", hint=f"Ids are 0 to {self.vocab_size - 1}.")
            piece = self._pieces[token] = self._piece(token, special=False)
        return piece

    def _piece(self, token: int, *, special: bool) -> bytes:
        # A separate buffer: a server uses two threads, and the call releases the interpreter lock.
        buffer = ctypes.create_string_buffer(_PIECE_BYTES)
        size = lib.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, special)
        if size < 0:
            buffer = ctypes.create_string_buffer(-size)
            size = lib.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, special)
        return buffer.raw[: max(0, size)]

    @property
    def template_traits(self) -> TemplateTraits:
        return self._template.traits

    def apply_chat_template(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True, **variables: object
    ) -> str:
        return self._template.render(messages, add_generation_prompt=add_generation_prompt, **variables)


def _named_tokens(vocab: Any) -> dict[str, int]:
    """Special tokens by their names in chat templates, which are those of transformers; -1: it has none."""
    return {
        "bos_token": int(lib.llama_vocab_bos(vocab)),
        "eos_token": int(lib.llama_vocab_eos(vocab)),
        "pad_token": int(lib.llama_vocab_pad(vocab)),
        "sep_token": int(lib.llama_vocab_sep(vocab)),
        "mask_token": int(lib.llama_vocab_mask(vocab)),
    }


def vocabulary_hash(vocab: Any) -> str:
    """Identifies a vocabulary of llama.cpp: the texts of all tokens, in order."""
    digest = hashlib.sha256()
    for token in range(lib.llama_vocab_n_tokens(vocab)):
        digest.update(lib.llama_vocab_get_text(vocab, token) or b"")
        digest.update(b"\0")
    return digest.hexdigest()[:16]


def _infill_tokens(vocab: Any) -> tuple[int, int, int] | None:
    before, after, middle = (
        int(find(vocab))
        for find in (lib.llama_vocab_fim_pre, lib.llama_vocab_fim_suf, lib.llama_vocab_fim_mid)
    )
    return None if min(before, after, middle) < 0 else (before, after, middle)
