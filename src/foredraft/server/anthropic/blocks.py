"""The content blocks of an answer, as the events that start, fill and end them."""

from __future__ import annotations

import json
import secrets
from base64 import b64encode
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Any, Final

from pydantic_core import from_json

from foredraft.errors import BackendError
from foredraft.server.sealed import sealed
from foredraft.server.tools.answer import AnswerReader, deltas
from foredraft.server.tools.deltas import ArgumentsDelta, CallStart, Delta, ReasoningDelta, TextDelta
from foredraft.types import Event, FinishEvent

Block = dict[str, Any]

_FILLS: Final = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}
"""The field of a delta that has its piece."""


class BlockWriter:
    """Turns one answer's events into events of content blocks. `reader` finds tool calls; None: there are
    none. `omitted`: a thought is a block without its text, which its signature holds; that of another is a
    hash of it.
    """

    def __init__(self, reader: AnswerReader | None, *, omitted: bool = False) -> None:
        self._reader = reader
        self._omitted = omitted
        self._thought = ""
        self._index = -1
        self._open: str | None = None

    @property
    def called(self) -> bool:
        """Whether there was a tool call."""
        return self._reader is not None and self._reader.called

    def write(self, events: Sequence[Event]) -> Iterator[dict[str, Any]]:
        """The block events for the engine's events. An empty answer is one empty text block."""
        end = events[-1]
        last = isinstance(end, FinishEvent)
        for delta in deltas(self._reader, events):
            yield from self._add(delta)
        if last and (self._index < 0 or (self._open == "thinking" and not _cut(end))):
            yield from self._begin(_text_block())
        if last:
            yield from self._finish()

    def _add(self, delta: Delta) -> Iterator[dict[str, Any]]:
        match delta:
            case ReasoningDelta(text):
                if self._open != "thinking":
                    yield from self._begin({"type": "thinking", "thinking": "", "signature": ""})
                    self._thought = ""
                self._thought += text
                if not self._omitted:
                    yield self._fill({"type": "thinking_delta", "thinking": text})
            case TextDelta(text):
                if self._open != "text":
                    yield from self._begin(_text_block())
                yield self._fill({"type": "text_delta", "text": text})
            case CallStart(name=name):
                yield from self._begin(
                    {"type": "tool_use", "id": new_tool_use_id(), "name": name, "input": {}}
                )
            case ArgumentsDelta(json_text=text):
                yield self._fill({"type": "input_json_delta", "partial_json": text})

    def _begin(self, block: Block) -> Iterator[dict[str, Any]]:
        yield from self._finish()
        self._index += 1
        self._open = block["type"]
        yield {"type": "content_block_start", "index": self._index, "content_block": block}

    def _fill(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}

    def _signature(self) -> str:
        return sealed(self._thought) if self._omitted else _hash(self._thought)

    def _finish(self) -> Iterator[dict[str, Any]]:
        if self._open is not None:
            if self._open == "thinking":
                yield self._fill({"type": "signature_delta", "signature": self._signature()})
            self._open = None
            yield {"type": "content_block_stop", "index": self._index}


def _hash(thought: str) -> str:
    return b64encode(sha256(thought.encode("utf-8", "surrogatepass")).digest()).decode()


def _cut(end: Event) -> bool:
    return isinstance(end, FinishEvent) and end.reason.cut


def new_tool_use_id() -> str:
    """An id in Anthropic's form: `toolu_` and 24 hexadecimal digits."""
    return f"toolu_{secrets.token_hex(12)}"


def _text_block() -> Block:
    """Without `citations`: Anthropic's API omits the key, and strict clients do not accept null."""
    return {"type": "text", "text": ""}


class BlockFolder:
    """Folds events into complete blocks."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self._pieces: list[str] = []

    def add(self, event: dict[str, Any]) -> None:
        """Add the next event of a block."""
        match event["type"]:
            case "content_block_start":
                self.blocks.append(dict(event["content_block"]))
                self._pieces = []
            case "content_block_delta":
                delta = event["delta"]
                if delta["type"] == "signature_delta":
                    self.blocks[-1]["signature"] = delta["signature"]
                else:
                    self._pieces.append(delta[_FILLS[delta["type"]]])
            case "content_block_stop":
                whole, block = "".join(self._pieces), self.blocks[-1]
                if block["type"] in ("text", "thinking"):
                    block[block["type"]] = whole
                else:
                    block["input"] = read_input(whole)


def read_input(json_text: str) -> dict[str, Any]:
    """A call's input from its JSON text. Of truncated JSON the complete part is returned, as clients read a
    stream.

    Raises BackendError for input that an answer cannot contain: infinite numbers, lone surrogates, hundreds
    of nested levels.
    """
    try:
        value: dict[str, Any] = from_json(json_text or "{}", allow_partial=True)
        json.dumps(value, allow_nan=False)
    except ValueError as error:
        raise BackendError(
            f"The model called a tool with an input that cannot be parsed: {error}.",
            hint="Repeat the request, or set stream to true to get the input as the model wrote it.",
        ) from None
    return value
