"""An incremental JSON scanner: each character is processed once, however the text is cut into pieces.

Parsing a growing buffer at every token would take time quadratic in the length of the arguments. This is a
pushdown automaton instead (RFC 8259): it tracks the open brackets and its position in a string or number.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final

_SPACE: Final = re.compile(r"[ \t\n\r]+")
_STRING_RUN: Final = re.compile(r'[^"\\]+')
_CONTROL: Final = re.compile(r"[\x00-\x1f]")
_LITERALS: Final = {"t": "true", "f": "false", "n": "null"}
_HEX: Final = frozenset("0123456789abcdefABCDEF")

# A number's states and the transitions between them. "d" stands for a digit from 1 to 9.
_NUMBER: Final = {
    ("-", "0"): "zero",
    ("-", "d"): "whole",
    ("whole", "0"): "whole",
    ("whole", "d"): "whole",
    ("zero", "."): "point",
    ("whole", "."): "point",
    ("point", "0"): "fraction",
    ("point", "d"): "fraction",
    ("fraction", "0"): "fraction",
    ("fraction", "d"): "fraction",
    ("zero", "e"): "e",
    ("whole", "e"): "e",
    ("fraction", "e"): "e",
    ("e", "+"): "sign",
    ("e", "-"): "sign",
    ("e", "0"): "exponent",
    ("e", "d"): "exponent",
    ("sign", "0"): "exponent",
    ("sign", "d"): "exponent",
    ("exponent", "0"): "exponent",
    ("exponent", "d"): "exponent",
}
_NUMBER_START: Final = {"-": "-", "0": "zero", "d": "whole"}
_NUMBER_ENDS: Final = frozenset({"zero", "whole", "fraction", "exponent"})


def _number_class(char: str) -> str:
    if char in "123456789":
        return "d"
    return "e" if char == "E" else char


class Run(Enum):
    """The kind of a run of characters. A string or scalar may come in several runs, quotes included."""

    SPACE = "space"
    PUNCTUATION = "punctuation"  # one of { } [ ] : ,
    KEY = "key"
    STRING = "string"
    SCALAR = "scalar"


class _Expect(Enum):
    OPENING = "the object's opening brace"
    FIRST_KEY = "a key or }"
    KEY = "a key"
    COLON = "a colon"
    FIRST_VALUE = "a value or ]"
    VALUE = "a value"
    END = "a comma or the closing bracket"


class ObjectScanner:
    """Scans one JSON object. `step` takes one run at a time, until `complete` or `failed`.

    Strict, with one exception: control characters may be raw in strings, because models write newlines there;
    `escape_controls` makes them valid.
    """

    def __init__(self) -> None:
        self.complete = False
        self.failed = False
        self.run = Run.SPACE
        self._open: list[str] = []
        self._expect = _Expect.OPENING
        self._in_string = False
        self._escaped = False
        self._hex_left = 0
        self._literal_left = ""
        self._number = ""

    @property
    def depth(self) -> int:
        """The number of open brackets; 1 between the members of the object itself."""
        return len(self._open)

    def step(self, text: str, at: int) -> int:
        """Take the run that starts at `text[at]`, set `run` to its kind, and return its end.

        Returns `at` if that character is invalid: then `failed` is set, unless the object is `complete`.
        """
        if self.complete or self.failed:
            return at
        end = self._string(text, at) if self._in_string else self._outside(text, at)
        self.failed = end == at
        return end

    def _string(self, text: str, at: int) -> int:
        char = text[at]
        if self._hex_left:
            self._hex_left -= 1
            return at + (char in _HEX)
        if self._escaped:
            self._escaped = False
            self._hex_left = 4 if char == "u" else 0
            return at + (char in '"\\/bfnrtu')
        if char == "\\":
            self._escaped = True
            return at + 1
        if char == '"':
            self._in_string = False
            self._expect = _Expect.COLON if self.run is Run.KEY else _Expect.END
            return at + 1
        run = _STRING_RUN.match(text, at)
        return run.end() if run else at

    def _outside(self, text: str, at: int) -> int:
        char = text[at]
        if self._literal_left:
            if char != self._literal_left[0]:
                return at
            self._literal_left = self._literal_left[1:]
            return at + 1
        if self._number:
            following = _NUMBER.get((self._number, _number_class(char)))
            if following:
                self._number = following
                return at + 1
            if self._number not in _NUMBER_ENDS:
                return at
            self._number = ""
        space = _SPACE.match(text, at)
        if space:
            self.run = Run.SPACE
            return space.end()
        return at + self._token(char)

    def _token(self, char: str) -> bool:
        """Whether a key, value or bracket may start (or end) with this character."""
        if char in "}],:":
            self.run = Run.PUNCTUATION
            return self._between(char)
        if self._expect in (_Expect.FIRST_KEY, _Expect.KEY):
            self.run = Run.KEY
            self._in_string = char == '"'
            return self._in_string
        return self._value(char)

    def _between(self, char: str) -> bool:
        if char == ":":
            fits = self._expect is _Expect.COLON
            self._expect = _Expect.VALUE
            return fits
        if char == ",":
            fits = self._expect is _Expect.END
            self._expect = _Expect.KEY if self._open and self._open[-1] == "{" else _Expect.VALUE
            return fits
        opening, empty = ("{", _Expect.FIRST_KEY) if char == "}" else ("[", _Expect.FIRST_VALUE)
        if not self._open or self._open[-1] != opening or self._expect not in (empty, _Expect.END):
            return False
        self._open.pop()
        self._expect = _Expect.END
        self.complete = not self._open
        return True

    def _value(self, char: str) -> bool:
        if self._expect is _Expect.OPENING and char != "{":
            return False
        if self._expect not in (_Expect.OPENING, _Expect.VALUE, _Expect.FIRST_VALUE):
            return False
        if char in "{[":
            self.run = Run.PUNCTUATION
            self._open.append(char)
            self._expect = _Expect.FIRST_KEY if char == "{" else _Expect.FIRST_VALUE
            return True
        self._expect = _Expect.END
        if char == '"':
            self.run = Run.STRING
            self._in_string = True
            return True
        self.run = Run.SCALAR
        self._literal_left = _LITERALS.get(char, "")[1:]
        self._number = _NUMBER_START.get(_number_class(char), "")
        return bool(self._literal_left or self._number)


def escape_controls(text: str) -> str:
    """A piece of a JSON string with its raw control characters escaped."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
