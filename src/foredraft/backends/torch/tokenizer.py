"""The tokenizer of a Hugging Face repository: text to ids, ids to bytes, and the chat template."""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from functools import cache, cached_property
from typing import Any

from foredraft.errors import BackendError, UnsupportedModelError
from foredraft.templates.chat import ChatTemplate
from foredraft.templates.control_texts import ControlTexts, Span
from foredraft.templates.traits import TemplateTraits
from foredraft.types import Message

INFILL = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
    ("<PRE>", "<SUF>", "<MID>"),
)
"""How families write the tokens before what precedes a gap, what follows it, and what fills it."""

_FIRST, _NEVER = '"prepend_scheme":"first"', '"prepend_scheme":"never"'

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TorchTokenizer:
    """A Tokenizer over a fast tokenizer of transformers. `vocab_size` is the model's: it may have more ids
    than the tokenizer has tokens; those stand for nothing. `ends` are the ids its configuration ends at.
    """

    def __init__(self, source: Any, vocab_size: int, ends: Iterable[int] = ()) -> None:
        fast = getattr(source, "backend_tokenizer", None)
        if fast is None:
            raise UnsupportedModelError(
                f"The tokenizer {type(source).__name__} has no fast version.",
                hint="Save one with tokenizer.json, or convert the model to GGUF.",
            )
        self.vocab_size = vocab_size
        self._recognising, self._plain = _alone(fast), _alone(fast)
        self._plain.encode_special_tokens = True  # "<|im_end|>" in a user's text is text
        self._added = fast.get_added_tokens_decoder()
        self._spelling = _Spelling(json.loads(fast.to_str()))
        found = [*ends, source.eos_token_id]
        self.end_tokens = frozenset(int(token) for token in found if token is not None)
        self.bos: int = -1 if source.bos_token_id is None else int(source.bos_token_id)
        self._adds_bos = self.bos >= 0 and fast.encode("a").ids[:1] == [self.bos]
        self.infill_tokens = _infill_tokens(fast)
        template = source.chat_template
        if isinstance(template, dict):
            template = template.get("default")
        self.chat_template: str | None = template
        named = {name: str(text) for name, text in source.special_tokens_map.items() if isinstance(text, str)}
        self._template = ChatTemplate(template, **{"bos_token": "", "eos_token": "", **named})
        self._pieces: dict[int, bytes] = {}

    def hash(self) -> str:
        """Identifies the vocabulary: the texts of all tokens, in order, as the llama.cpp backend has it of
        the same model converted to GGUF.
        """
        digest = hashlib.sha256()
        for token in range(self.vocab_size):
            text = self._recognising.id_to_token(token)
            digest.update((f"[PAD{token}]" if text is None else text).encode())
            digest.update(b"\0")
        return digest.hexdigest()[:16]

    def spelled(self, token: int) -> str:
        """A token as the vocabulary spells it: of a special one what a template writes for it."""
        return str(self._recognising.id_to_token(token))

    def encode(self, text: str, *, special: bool = False, add_bos: bool = False) -> list[int]:
        return self._encode([(text, special)], add_bos=add_bos)

    def framed(self, text: str, second: str | None = None) -> Any:
        """A text, or a pair of texts, with the special tokens around it: an `Encoding` of tokenizers."""
        return self._plain.encode(text, second)

    def encode_rendered(self, text: str, literal: Sequence[Span], *, begins: bool = True) -> list[int]:
        parts = self.control_texts.parts(text, literal) if literal else [(text, True)]
        return self._encode(parts, add_bos=begins)

    def _encode(self, parts: Iterable[tuple[str, bool]], *, add_bos: bool) -> list[int]:
        """Token ids of a text in parts, and whether special tokens are recognised in each."""
        ids: list[int] = []
        for text, special in parts:
            clean = text.encode("utf-8", "replace").decode()  # half of a surrogate pair has no bytes
            pair = self._inner if ids else (self._plain, self._recognising)
            try:
                # As a batch of one: alone the library holds the interpreter up, for seconds a megabyte.
                [encoding] = pair[special].encode_batch([clean], add_special_tokens=False)
            except Exception as error:  # noqa: BLE001 - the library has no error of its own
                raise BackendError(f"The tokenizer cannot encode this text: {error}") from None
            ids += encoding.ids
        if add_bos and self._adds_bos and ids[:1] != [self.bos]:
            ids.insert(0, self.bos)
        return ids

    @cached_property
    def _inner(self) -> tuple[Any, Any]:
        """The two tokenizers for what does not begin a text: some write a space before the beginning only."""
        written = self._plain.to_str()
        if _FIRST not in written:
            return self._plain, self._recognising
        recognising = type(self._plain).from_str(written.replace(_FIRST, _NEVER))
        plain = copy.deepcopy(recognising)
        plain.encode_special_tokens = True
        return plain, recognising

    @cached_property
    def control_texts(self) -> ControlTexts:
        """The texts of special tokens, with the white space that some of them take."""
        special = [token for token in self._added.values() if token.special]
        return ControlTexts(
            [token.content for token in special],
            lstrip=[token.content for token in special if token.lstrip],
            rstrip=[token.content for token in special if token.rstrip],
        )

    def token_bytes(self, token: int) -> bytes:
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self._piece(token)
        return piece

    def _piece(self, token: int) -> bytes:
        added = self._added.get(token)
        if added is not None:
            return b"" if added.special or token in self.end_tokens else added.content.encode()
        text = self._recognising.id_to_token(token)
        return b"" if text is None or token in self.end_tokens else self._spelling.bytes_of(text)

    @property
    def template_traits(self) -> TemplateTraits:
        return self._template.traits

    def apply_chat_template(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True, **variables: object
    ) -> str:
        return self._template.render(messages, add_generation_prompt=add_generation_prompt, **variables)


def _alone(fast: Any) -> Any:
    """A copy that neither cuts nor pads, whatever the repository or another user of the original set."""
    own = copy.deepcopy(fast)
    own.no_truncation()
    own.no_padding()
    return own


def _infill_tokens(fast: Any) -> tuple[int, int, int] | None:
    for texts in INFILL:
        before, after, middle = (fast.token_to_id(text) for text in texts)
        if None not in (before, after, middle):
            return int(before), int(after), int(middle)
    return None


class _Spelling:
    """How a vocabulary writes bytes, from the steps of its decoder: GPT-2's letters for bytes, or
    SentencePiece's `▁` for a space and `<0x0A>` for a byte.
    """

    def __init__(self, tokenizer: dict[str, Any]) -> None:
        steps = list(_steps(tokenizer.get("decoder")))
        kinds = {step["type"] for step in steps}
        self._letters = "ByteLevel" in kinds
        self._byte_tokens = "ByteFallback" in kinds
        self._replacements = [
            (step["pattern"]["String"], step["content"])
            for step in steps
            if step["type"] == "Replace" and "String" in step["pattern"]
        ]
        if "Metaspace" in kinds:
            self._replacements += [
                (step["replacement"], " ") for step in steps if step["type"] == "Metaspace"
            ]

    def bytes_of(self, text: str) -> bytes:
        """What a token of the vocabulary stands for."""
        if self._letters:
            table = _byte_letters()
            if all(letter in table for letter in text):
                return bytes(table[letter] for letter in text)
            return text.encode()
        match = _BYTE.fullmatch(text) if self._byte_tokens else None
        if match:
            return bytes([int(match[1], 16)])
        for written, meant in self._replacements:
            text = text.replace(written, meant)
        return text.encode()


def _steps(decoder: dict[str, Any] | None) -> Iterable[dict[str, Any]]:
    if decoder is None:
        return
    if decoder["type"] == "Sequence":
        for step in decoder["decoders"]:
            yield from _steps(step)
    else:
        yield decoder


@cache
def _byte_letters() -> dict[str, int]:
    """GPT-2's letter for each byte: printable ones stand for themselves, the others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(0x100 + index): byte for index, byte in enumerate(others)}
