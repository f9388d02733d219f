"""Arguments written as members in a notation of their own, converted to JSON: `(city='Oslo', days=[1, 2])`.

Shared by Gemma and by calls in Python; `Notation` defines the differences. A trailing comma is allowed, as in
Python.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from foredraft.server.tools.deltas import DeltaLog
from foredraft.server.tools.headed import Head
from foredraft.server.tools.values import json_value

_WORDS: Final[Mapping[str, str]] = {"True": "true", "False": "false", "None": "null"}
_SCALARS: Final = frozenset({"integer", "number", "boolean", "null"})
_CLOSING: Final = {"{": "}", "[": "]", "(": ")"}
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_CODES: Final = {"x": 2, "u": 4, "U": 8}


@dataclass(frozen=True, slots=True, kw_only=True)
class Notation:
    """How members are written: the opening bracket, the separator of key and value (inside a value a colon),
    and the quotes of texts; in one-character quotes a backslash escapes. `bare`: texts may also be unquoted.
    """

    opening: str
    separator: str
    quotes: tuple[str, ...]
    bare: bool = False


class _Expect(Enum):
    KEY = "a key"
    SEPARATOR = "the separator of key and value"
    VALUE = "a value"
    END = "a comma or the closing bracket"


class Members:
    """Reads members character by character after their opening bracket, and produces JSON.

    `begun`: the first key has ended, or there is none. `complete`: the closing bracket was read.
    """

    def __init__(self, notation: Notation) -> None:
        self.begun = False
        self.complete = False
        self._notation = notation
        self._json = ["{"]
        self._open = [notation.opening]
        self._expect = _Expect.KEY
        self._comma = False  # a comma is due before the next item
        self._word = ""
        self._quote = ""  # the end of the current text
        self._part = ""  # a possible part of that end, or of an opening quote
        self._escape = ""

    @property
    def pending(self) -> str:
        """Text that was taken but has produced no JSON yet."""
        return self._word + self._part + self._escape

    def drain(self) -> str:
        """Return and clear the JSON produced so far."""
        given, self._json = "".join(self._json), []
        return given

    def take(self, char: str) -> bool:
        """Take the next character. Returns False if it is invalid there."""
        if self._quote:
            return self._in_text(char)
        if self._part:
            return self._in_opening_quote(char)
        if self._word:
            if self._in_word(char):
                self._word += char
                return True
            if not self._end_word():
                return False
        if char.isspace():
            return True
        if self._expect in (_Expect.KEY, _Expect.VALUE) and char not in "[]{})":
            return self._begin(char)
        return self._mark(char)

    def _begin(self, char: str) -> bool:
        """Start a key or a value other than a bracket."""
        if any(quote.startswith(char) for quote in self._notation.quotes):
            return self._in_opening_quote(char)
        self._word = char
        return self._in_word(char)

    def _say(self, json_text: str) -> None:
        """Write the start of a key or a value."""
        self._json.append(f", {json_text}" if self._comma else json_text)
        self._comma = False

    # --- marks -----------------------------------------------------------------------------------------

    def _mark(self, char: str) -> bool:
        separator = self._notation.separator if len(self._open) == 1 else ":"
        if char == separator and self._expect is _Expect.SEPARATOR:
            self._json.append(": ")
            self._expect = _Expect.VALUE
            self.begun = True
            return True
        if char == "," and self._expect is _Expect.END:
            self._comma = True
            self._expect = _Expect.VALUE if self._open[-1] == "[" else _Expect.KEY
            return True
        if char in "[{" and self._expect is _Expect.VALUE:
            self._say(char)
            self._open.append(char)
            self._expect = _Expect.VALUE if char == "[" else _Expect.KEY
            return True
        return self._close(char)

    def _close(self, char: str) -> bool:
        """End a list or the members, also in place of the next item."""
        expected = _Expect.VALUE if self._open[-1] == "[" else _Expect.KEY
        if char != _CLOSING[self._open[-1]] or self._expect not in (_Expect.END, expected):
            return False
        self._open.pop()
        self._json.append("]" if char == "]" else "}")
        self._expect, self._comma = _Expect.END, False
        self.complete = not self._open
        self.begun = self.begun or self.complete
        return True

    # --- words -----------------------------------------------------------------------------------------

    def _in_word(self, char: str) -> bool:
        if self._expect is _Expect.VALUE and self._notation.bare:
            return char not in ",[]{}"
        return char.isalnum() or char in "_-+."

    def _end_word(self) -> bool:
        word, self._word = self._word.strip(), ""
        if self._expect is _Expect.KEY:
            self._say(json.dumps(word, ensure_ascii=False))
            self._expect = _Expect.SEPARATOR
            return True
        value = json_value(_WORDS.get(word, word), _SCALARS)
        if value.startswith('"') and not self._notation.bare:
            return False
        self._say(value)
        self._expect = _Expect.END
        return True

    # --- texts -----------------------------------------------------------------------------------------

    def _in_opening_quote(self, char: str) -> bool:
        self._part += char
        if self._part in self._notation.quotes:
            self._say('"')
            self._quote, self._part = self._part, ""
            return True
        return any(quote.startswith(self._part) for quote in self._notation.quotes)

    def _in_text(self, char: str) -> bool:
        if self._escape:
            return self._escaped(char)
        if char == "\\" and len(self._quote) == 1:
            self._escape = char
            return True
        self._part += char
        if self._part == self._quote:
            self._quote = self._part = ""
            self._json.append('"')
            self._expect = _Expect.SEPARATOR if self._expect is _Expect.KEY else _Expect.END
            return True
        while self._part and not self._quote.startswith(self._part):
            self._write(self._part[0])
            self._part = self._part[1:]
        return True

    def _escaped(self, char: str) -> bool:
        self._escape += char
        kind, digits = self._escape[1], self._escape[2:]
        wanted = _CODES.get(kind, 0)
        if len(digits) < wanted:
            return not digits or char in "0123456789abcdefABCDEF"
        try:
            said = chr(int(digits, 16)) if wanted else _ESCAPES.get(kind, kind)
        except (ValueError, OverflowError):
            return False
        if not wanted and said == kind and kind not in "\"'\\/\n":
            said = f"\\{kind}"
        self._escape = ""
        self._write(said)
        return True

    def _write(self, said: str) -> None:
        """Write a piece of a text. A lone surrogate stays an escape: UTF-8 text cannot contain it."""
        half = any("\ud800" <= char <= "\udfff" for char in said)
        self._json.append(json.dumps(said, ensure_ascii=half)[1:-1])


class MembersCall:
    """Reads a call with a head, and its arguments as members; see CallReader."""

    def __init__(self, tools: Mapping[str, object], log: DeltaLog, head: Head, notation: Notation) -> None:
        self.started = False
        self.done = False
        self.failed = False
        self.unread = ""
        self._names = tools
        self._log = log
        self._form = head
        self._opening = notation.opening
        self._head = ""
        self._name = ""
        self._members = Members(notation)

    @property
    def complete(self) -> bool:
        """See CallReader."""
        return self.done

    def feed(self, text: str, at: int) -> int:
        """See CallReader."""
        while at < len(text) and not self.done and not self.failed:
            char = text[at]
            fits = self._read_member(char) if self._name else self._read_head(char)
            self.failed = not fits
            at += fits
        self._show()
        return at

    def _read_head(self, char: str) -> bool:
        if char == self._opening:
            self._name = self._form.name(self._head, self._names) or ""
            return bool(self._name)
        self._head += char
        return self._form.begins(self._head)

    def _read_member(self, char: str) -> bool:
        pending = self._members.pending
        fits = self._members.take(char)
        if not fits:
            self.unread = pending
        self.done = self._members.complete
        return fits

    def _show(self) -> None:
        if not self._members.begun:
            return
        if not self.started:
            self._log.start(self._name)
            self.started = True
        self._log.arguments(self._members.drain())
