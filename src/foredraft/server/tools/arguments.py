"""A call's arguments as models write them: an object, a JSON string that contains an object, or null.

Also the arguments in a conversation's history, which are invalid JSON if the call was cut off.
"""

from __future__ import annotations

import json
from typing import Any, Final

from foredraft.server.tools.scan import ObjectScanner, Run, escape_controls
from foredraft.server.tools.unescape import Unescaper

NO_ARGUMENTS: Final = "{}"
_SPACE: Final = " \t\n\r"


def read_arguments(text: str) -> dict[str, Any] | None:
    """Parse the JSON text of arguments as an object; of truncated JSON the complete part. None: not an
    object.

    Answers can be cut off and contain anything a model writes: text that cannot be parsed (hundreds of
    levels, unbounded numbers, lone surrogates) becomes one argument, because templates need an object.
    """
    from pydantic_core import from_json  # of the server's packages, without which doctor looks for dialects

    text = text.strip()
    if not text:
        return {}
    if not text.startswith("{"):
        return None
    for partial in ("off", "trailing-strings"):
        try:
            value = from_json(text, allow_partial=partial, allow_inf_nan=False)
            json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
        except (ValueError, RecursionError):
            continue
        return dict(value)
    return {"arguments": text.encode("utf-8", "replace").decode()}


class Arguments:
    """Converts the runs of the arguments' value into JSON text that can be shown.

    `begun` becomes true at the object's opening brace: from then on the call can be announced. `complete`:
    the object has ended. When `take` sets `failed`, `taken` is the number of valid characters of that piece,
    and `unread` the earlier text that was taken but neither shown nor valid.
    """

    def __init__(self) -> None:
        self.begun = False
        self.failed = False
        self.taken = 0
        self._first = True
        self._depth = 0
        self._inside: _InsideString | None = None

    @property
    def unread(self) -> str:
        """Raw text that was taken but not shown: an incomplete escape."""
        return self._inside.unread if self._inside else ""

    @property
    def complete(self) -> bool:
        """Whether the object has started and ended."""
        return self._inside.complete if self._inside else self.begun and not self._depth

    def take(self, piece: str, run: Run) -> str:
        """The text to show for this run of the value."""
        first, self._first = self._first, False
        if first:
            self.failed = piece not in ("{", '"', "n")
            if piece == '"':
                self._inside = _InsideString()
            if self.failed or self._inside:
                return ""
        if self._inside:
            shown = self._inside.take(piece)
            self.begun, self.failed = self._inside.begun, self._inside.failed
            self.taken = self._inside.taken
            return shown
        if run is Run.SCALAR and not self.begun:
            return ""  # null: the scanner checks its spelling
        self.begun = True
        if run is Run.PUNCTUATION:
            self._depth += (piece in ("{", "[")) - (piece in ("}", "]"))
        return escape_controls(piece) if run in (Run.STRING, Run.KEY) else piece


class _InsideString:
    """The object inside a JSON string: unescaped, and scanned again."""

    def __init__(self) -> None:
        self.begun = False
        self.failed = False
        self.taken = 0
        self.unread = ""
        self._decoder = Unescaper()
        self._scanner = ObjectScanner()

    @property
    def complete(self) -> bool:
        return self._scanner.complete

    def take(self, piece: str) -> str:
        """The text to show for a run after the opening quote (the closing quote included)."""
        before = self._decoder.held
        closing = piece == '"' and not self._decoder.escaping
        text = self._decoder.flush() if closing else self._decoder.feed(piece)
        shown, good = self._scan(text)
        self.failed = good < len(text) or (closing and self.begun and not self._scanner.complete)
        # A piece without escapes is unchanged by decoding, so it can be cut where it became invalid. An
        # escape is invalid as a whole (half a pair is followed by text inside a string, where nothing is
        # invalid).
        self.taken = good
        self.unread = before if good < len(text) else self._decoder.held
        return shown

    def _scan(self, text: str) -> tuple[str, int]:
        """The text to show, and the number of characters taken."""
        shown: list[str] = []
        at = 0
        while at < len(text):
            if text[at] in _SPACE and (self._scanner.complete or not self.begun):
                at += 1
                continue
            end = self._scanner.step(text, at)
            if end == at:
                break
            self.begun = True
            piece = text[at:end]
            shown.append(escape_controls(piece) if self._scanner.run in (Run.STRING, Run.KEY) else piece)
            at = end
        return "".join(shown), at
