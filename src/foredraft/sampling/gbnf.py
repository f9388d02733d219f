r"""Translates llama.cpp's GBNF into llguidance's variant of Lark.

They differ in rule names, in the spelling of characters, and in that Lark distinguishes terminals (upper
case, read by a lexer) from rules. A rule becomes a terminal if everything in it is one, because llguidance's
parser works on lexemes, not on characters. Deeply nested groups become separate rules.

The syntax is that of `grammars/README.md` and `llama-grammar.cpp` in llama.cpp: escapes `\xHH`, `\uHHHH`,
`\UHHHHHHHH`, `\t \r \n \\ \" \[ \] \-`, `.` for any character, `{m,n}`, `<[id]>` and `!<[id]>` for tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from foredraft.errors import RequestError

MOST_NESTED = 8
"""Maximum nested groups that are kept as groups: llguidance allows about 30."""

_RULE = re.compile(r"(?m)^[ \t]*[A-Za-z0-9_-]+[ \t]*::=")
# Possessive (`++`), so that no text is scanned more than once.
_TOKEN = re.compile(
    r"""(?P<space>[ \t]+|\#[^\r\n]*)
    | (?P<newline>\r\n|\r|\n)
    | (?P<defined>[\w-]++[ \t]*+::=)
    | (?P<name>[\w-]+)
    | (?P<literal>"(?:\\.|[^"\\])*")
    | (?P<characters>\[(?:\\.|[^\]\\])*\])
    | (?P<token>!?<\[\d+\]>)
    | (?P<any>\.)
    | (?P<repeat>[*+?]|\{\s*+\d++\s*+(?:,\s*+(?:\d++\s*+)?)?\})
    | (?P<bar>\|)
    | (?P<open>\()
    | (?P<close>\))""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(?:x(..)|u(.{4})|U(.{8})|(.?))", re.DOTALL)
_PLAIN = {"t": "\t", "r": "\r", "n": "\n", "\\": "\\", '"': '"', "[": "[", "]": "]", "-": "-"}
_ANY = "/(?s:.)/"


def is_gbnf(source: str) -> bool:
    """Whether a grammar is GBNF and not Lark: its rules are defined with `::=`."""
    return _RULE.search(source.removeprefix("\ufeff")) is not None


def lark_of(source: str) -> str:
    """A GBNF grammar as Lark. Raises RequestError with the fault and its place."""
    rules = _rules(source.removeprefix("\ufeff"))
    if "root" not in rules:
        raise _wrong("It has no rule 'root'")
    for rule in rules.values():
        for name in rule.names:
            if name not in rules:
                raise _wrong(f"The rule {name!r} is not defined")
    names = _names(rules)
    return "".join(f"{names[name]}: {rule.text(names)}\n" for name, rule in rules.items())


@dataclass(slots=True)
class _Rule:
    """A rule's right side: pieces of Lark, and the names of rules between them. `last`: the start of the last
    item, to which a repetition applies.
    """

    pieces: list[str | tuple[str]] = field(default_factory=list)
    terminal: bool = True
    last: int = 0
    repeated: int = 0

    @property
    def names(self) -> Iterator[str]:
        return (piece[0] for piece in self.pieces if isinstance(piece, tuple))

    def text(self, names: dict[str, str]) -> str:
        return " ".join(piece if isinstance(piece, str) else names[piece[0]] for piece in self.pieces)


class _Reader:
    """Combines tokens into rules. `place`: the position, for error messages."""

    def __init__(self, source: str) -> None:
        self._source = source
        self.place = 0
        self.rules: dict[str, _Rule] = {}
        self._open: list[_Rule] = []  # the current rule, and the open groups in it
        self._empty = True  # whether the current sequence is empty
        self._repeatable = False

    def wrong(self, reason: str) -> RequestError:
        line = self._source.count("\n", 0, self.place) + 1
        rest = self._source[self.place : self.place + 20].split("\n")[0]
        return _wrong(f"{reason}, at line {line}, {rest!r}" if rest else f"{reason}, at its end")

    def define(self, name: str) -> None:
        if len(self._open) > 1:
            raise self.wrong("Expected ')'")
        self._end_sequence()
        self._open = [_Rule()]
        self.rules[name] = self._open[0]
        self._empty, self._repeatable = True, False

    def add(self, piece: str | tuple[str], *, terminal: bool = True) -> None:
        self._check_begun()
        self._item([piece], terminal=terminal)

    def _item(self, pieces: list[str | tuple[str]], *, terminal: bool) -> None:
        rule = self._open[-1]
        rule.last, rule.repeated = len(rule.pieces), 0
        rule.pieces += pieces
        rule.terminal &= terminal
        self._empty, self._repeatable = False, True

    def _check_begun(self) -> None:
        if not self._open:
            raise self.wrong("Expected a rule's name and '::='")

    def repeat(self, count: str) -> None:
        if not self._repeatable:
            raise self.wrong("There is nothing to repeat")
        rule = self._open[-1]
        if rule.repeated == MOST_NESTED:
            raise self.wrong(f"More than {MOST_NESTED} repetitions apply to the same item")
        if rule.repeated:  # Lark allows one of them
            rule.pieces[rule.last :] = ["(", *rule.pieces[rule.last :], ")"]
        rule.pieces.append(count)
        rule.repeated += 1

    def bar(self) -> None:
        self._end_sequence()
        self.add("|")
        self._empty, self._repeatable = True, False

    def open(self) -> None:
        self._check_begun()
        self._open.append(_Rule())
        self._empty, self._repeatable = True, False

    def close(self) -> None:
        if len(self._open) < 2:
            raise self.wrong("There is no '(' to the ')'")
        self._end_sequence()
        group = self._open.pop()
        if len(self._open) % MOST_NESTED:
            self._item(["(", *group.pieces, ")"], terminal=group.terminal)
        else:
            name = f"group {len(self.rules)}"  # not a possible name in a client's grammar
            self.rules[name] = group
            self._item([(name,)], terminal=True)

    def finish(self) -> dict[str, _Rule]:
        if len(self._open) > 1:
            raise self.wrong("Expected ')'")
        self._end_sequence()
        return self.rules

    @property
    def ends_at_newline(self) -> bool:
        """Whether a newline ends the rule: not within a group, nor after a bar or its '::='."""
        return len(self._open) == 1 and not self._empty

    def end_rule(self) -> None:
        self._end_sequence()
        self._open, self._repeatable = [], False

    def _end_sequence(self) -> None:
        if self._open and self._empty:
            self._open[-1].pieces.append('""')
            self._empty = False


def _rules(source: str) -> dict[str, _Rule]:
    """The rules of a grammar by name; if several have the same name the last, as in llama.cpp."""
    reader = _Reader(source)
    while reader.place < len(source):
        token = _TOKEN.match(source, reader.place)
        if token is None:
            raise reader.wrong("It has a syntax error")
        _read(reader, token)
        reader.place = token.end()
    return reader.finish()


def _read(reader: _Reader, token: re.Match[str]) -> None:
    kind, text = token.lastgroup, token[0]
    if kind == "newline":
        if reader.ends_at_newline:
            reader.end_rule()
    elif kind == "defined":
        reader.define(re.split(r"[\s#:]", text, maxsplit=1)[0])
    elif kind == "repeat":
        reader.repeat(re.sub(r"\s", "", text))
    elif kind in ("bar", "open", "close"):
        {"bar": reader.bar, "open": reader.open, "close": reader.close}[kind]()
    elif kind != "space":
        reader.add(_item(kind, text, reader), terminal=kind != "token")


def _item(kind: str | None, text: str, reader: _Reader) -> str | tuple[str]:
    """An item that can be repeated, as a piece of a rule."""
    if kind == "name":
        return (text,)
    if kind == "token":
        return text.replace("!<[", "<[^")
    if kind == "any":
        return _ANY
    return _literal(text[1:-1], reader) if kind == "literal" else _class(text[1:-1], reader)


# --- characters ----------------------------------------------------------------------------------------


def _characters(text: str, reader: _Reader) -> str:
    """The text with its escapes replaced by their characters."""

    def replaced(escape: re.Match[str]) -> str:
        digits = escape[1] or escape[2] or escape[3]
        if digits is not None:
            return _code_point(digits, reader)
        if escape[4] not in _PLAIN:
            raise reader.wrong(f"There is no escape \\{escape[4]}")
        return _PLAIN[escape[4]]

    return _ESCAPE.sub(replaced, text)


def _code_point(digits: str, reader: _Reader) -> str:
    if not re.fullmatch("[0-9a-fA-F]+", digits):
        raise reader.wrong(f"Expected {len(digits)} hexadecimal digits instead of {digits!r}")
    number = int(digits, 16)
    if number > 0x10FFFF or 0xD800 <= number < 0xE000:
        raise reader.wrong(f"U+{number:04X} is not a character")
    return chr(number)


def _literal(text: str, reader: _Reader) -> str:
    return '"' + "".join(map(_in_literal, _characters(text, reader))) + '"'


def _in_literal(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    if character.isprintable():
        return character
    return f"\\u{ord(character):04x}" if ord(character) < 0xA0 else character


def _class(text: str, reader: _Reader) -> str:
    """A set of characters as a regex. A `-` between two characters is a range, unless it is escaped."""
    negated = text.startswith("^")
    parts: list[str] = []
    characters = re.findall(r"\\(?:x..|u.{4}|U.{8}|.)|.", text[negated:], re.DOTALL)
    place = 0
    while place < len(characters):
        first = last = _characters(characters[place], reader)
        if place + 2 < len(characters) and characters[place + 1] == "-":
            last = _characters(characters[place + 2], reader)
            place += 2
        if last < first:
            raise reader.wrong(f"The range {first}-{last} is empty")
        parts.append(_in_class(first) if first == last else f"{_in_class(first)}-{_in_class(last)}")
        place += 1
    if not parts:
        return _ANY if negated else "/[a&&b]/"
    return f"/[{'^' if negated else ''}{''.join(parts)}]/"


def _in_class(character: str) -> str:
    return character if character.isalnum() else f"\\x{{{ord(character):x}}}"


# --- names ---------------------------------------------------------------------------------------------


def _names(rules: dict[str, _Rule]) -> dict[str, str]:
    """Lark's names for rules: `start` for `root`, upper case for terminals, all different."""
    _find_terminals(rules)
    names: dict[str, str] = {"root": "start"}
    taken = {"start"}
    for name, rule in rules.items():
        if name == "root":
            continue
        base = re.sub(r"\W", "_", name, flags=re.ASCII).lower().strip("_") or "rule"
        base = base if base[0].isalpha() else f"r{base}"
        chosen, number = base, 2
        while chosen in taken:
            chosen, number = f"{base}_{number}", number + 1
        taken.add(chosen)
        names[name] = chosen.upper() if rule.terminal else chosen
    return names


def _find_terminals(rules: dict[str, _Rule]) -> None:
    """Mark terminals: not recursive rules, not `root`, and not rules with a token."""
    users: dict[str, list[str]] = {}
    missing: dict[str, int] = {}
    for name, rule in rules.items():
        used = set(rule.names)
        missing[name] = len(used)
        for other in used:
            users.setdefault(other, []).append(name)
    found = {name for name, rule in rules.items() if rule.terminal and not missing[name]}
    waiting = list(found)
    while waiting:
        for user in users.get(waiting.pop(), ()):
            missing[user] -= 1
            if not missing[user] and rules[user].terminal:
                found.add(user)
                waiting.append(user)
    for name, rule in rules.items():
        rule.terminal = name in found and name != "root"


def _wrong(reason: str) -> RequestError:
    return RequestError(
        f"The grammar cannot be used. {reason}.",
        hint="See llama.cpp's grammars/README.md for the syntax of GBNF.",
    )
