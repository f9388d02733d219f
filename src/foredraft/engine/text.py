"""Tokens to text as they come: incremental UTF-8, and stop strings that may lie across tokens."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from foredraft.protocols import Tokenizer


class TextStream:
    """The text of one request. What might still turn into a stop string is held back."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.stopped = False

    def feed(self, token: int) -> str:
        """The text that can be shown after this token. Sets `stopped` when a stop string is complete; the
        text then ends before it.
        """
        piece = self._decoder.decode(self._tokenizer.token_bytes(token))
        return self._release(piece) if self._stop else piece

    def flush(self) -> str:
        """What was held back, when the text ends for another reason. Empty after a stop string."""
        if self.stopped:
            return ""
        rest = self._decoder.decode(b"", final=True)
        shown = self._release(rest) if self._stop else rest
        held, self._held = self._held, ""
        return shown + held

    def _release(self, piece: str) -> str:
        text = self._held + piece
        found = [(at + len(stop), at) for stop in self._stop if (at := text.find(stop)) >= 0]
        if found:
            # The one that is complete first, as if the text had come character by character.
            self.stopped = True
            self._held = ""
            return text[: min(found)[1]]
        keep = max(_overlap(text, stop) for stop in self._stop)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` that begins `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
