"""A JSON string's value, decoded piece by piece."""

from __future__ import annotations

import json
from typing import Final

_HIGH: Final = range(0xD800, 0xDC00)
_LOW: Final = range(0xDC00, 0xE000)


class Unescaper:
    """Decodes the inside of a JSON string as the scanner cuts it: escapes a character at a time.

    A surrogate that has no partner is given back as its escape, since no UTF-8 text can hold it. `held` is
    what was taken and is not decoded yet.
    """

    def __init__(self) -> None:
        self._escape = ""
        self._high = ""

    @property
    def held(self) -> str:
        """The raw characters of an escape (or of half a surrogate pair) still waited for."""
        return self._high + self._escape

    @property
    def escaping(self) -> bool:
        """Whether an escape is open, so that the next character belongs to it whatever it is."""
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
        """A surrogate that waited for its partner in vain."""
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
