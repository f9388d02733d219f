"""Tokens to text as they come: incremental UTF-8, and stop strings that may span tokens."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from foredraft.protocols import Tokenizer


class TextStream:
    """The text of one request. What might become a stop string is held back."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._stops = [StopString(text) for text in stop]
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._undecided = ""
        self.stopped = False

    def feed(self, token: int, *, scan: bool | None = True) -> str:
        """The text that can be shown after this token. Sets `stopped` when a stop string is complete; then
        the text ends before it. `scan`: whether stop strings count in it; None: the next token will tell.
        """
        piece = self._decoder.decode(self._tokenizer.token_bytes(token))
        if not self._stops:
            return piece
        if scan is None:
            self._undecided += piece
            return ""
        piece, self._undecided = self._undecided + piece, ""
        if scan:
            return self._release(piece)
        shown, self._held = self._held + piece, ""
        for stop in self._stops:
            stop.matched = 0
        return shown

    def flush(self) -> str:
        """The text that was held back, for when the answer ends. Empty after a stop string."""
        if self.stopped:
            return ""
        rest = self._undecided + self._decoder.decode(b"", final=True)
        shown = self._release(rest) if self._stops else rest
        held, self._held = self._held, ""
        return shown + held

    def _release(self, piece: str) -> str:
        text, begins = self._held + piece, len(self._held)
        ends = [(begins + end, stop.length) for stop in self._stops if (end := stop.feed(piece)) is not None]
        if ends:
            # The one that is complete first, as if the text had come character by character; of those that
            # are complete at once the longest, which begins first.
            self.stopped = True
            self._held = ""
            end, length = min(ends, key=lambda found: (found[0], -found[1]))
            return text[: end - length]
        keep = max(stop.matched for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


class StopString:
    """Looks for a string in text that comes in pieces, in time linear in the text (Knuth, Morris and Pratt
    1977, "Fast pattern matching in strings").

    `matched` is the length of the longest suffix of the text that is a prefix of the string. The table of
    borders grows only as far as was ever matched, so that a string of megabytes costs nothing at first.
    """

    __slots__ = ("_borders", "_string", "matched")

    def __init__(self, string: str) -> None:
        self._string = string
        self._borders = [0, 0]  # by length of a prefix: its longest proper suffix that is a prefix too
        self.matched = 0

    @property
    def length(self) -> int:
        """Characters of the string."""
        return len(self._string)

    def feed(self, piece: str) -> int | None:
        """The index in `piece` behind the string's last character where it is complete for the first time;
        None if it is not. Must not be called again after that.
        """
        string, matched = self._string, self.matched
        if not matched and string[0] not in piece:
            return None
        for place, character in enumerate(piece):
            while matched and string[matched] != character:
                matched = self._border(matched)
            matched += string[matched] == character
            if matched == len(string):
                return place + 1
        self.matched = matched
        return None

    def _border(self, length: int) -> int:
        borders, string = self._borders, self._string
        while len(borders) <= length:
            last = string[len(borders) - 1]
            border = borders[-1]
            while border and string[border] != last:
                border = borders[border]
            borders.append(border + (string[border] == last))
        return borders[length]
