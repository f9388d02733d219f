"""Incremental decoding of a JSON string."""

from __future__ import annotations

import json
from typing import Final

_HIGH: Final = range(0xD800, 0xDC00)
_LOW: Final = range(0xDC00, 0xE000)


class Unescaper:
    """Decodes the inside of a JSON string in the scanner's pieces: escapes one character at a time.

    A lone surrogate is returned as its escape, since UTF-8 text cannot contain it. `held` is the text that
    was taken but not decoded yet.
    """

    def __init__(self) -> None:
        self._escape = ""
        self._high = ""

    @property
    def held(self) -> str:
        """The raw characters of an incomplete escape or surrogate pair."""
        return self._high + self._escape

    @property
    def escaping(self) -> bool:
        """Whether the next character belongs to an escape."""
        return bool(self._escape)

    def feed(self, piece: str) -> str:
        """The text that `piece` completes."""
        if not self._escape:
            if piece == "\\":
                self._escape = piece
                return ""
            return self.flush() + piece
        self._escape += piece
        if len(self._escape) < (6 if self._escape[1] == "u" else 2):
            return ""
        escape, self._escape = self._escape, ""
        return self._decoded(escape)

    def flush(self) -> str:
        """The escape of a surrogate whose other half did not come."""
        high, self._high = self._high, ""
        return high

    def _decoded(self, escape: str) -> str:
        code = int(escape[2:], 16) if escape[1] == "u" else 0
        if self._high and code in _LOW:
            return str(json.loads(f'"{self.flush()}{escape}"'))
        before = self.flush()
        if code in _HIGH:
            self._high = escape
            return before
        return before + (escape if code in _LOW else str(json.loads(f'"{escape}"')))
