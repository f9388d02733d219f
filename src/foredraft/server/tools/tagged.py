"""Calls whose arguments are each between tags, with values that are not JSON.

Shared by Qwen 3 Coder and GLM 4.5; their files define the differences. A value ends where its closing tag is
followed by the next key or the end of the call: elsewhere the tag is text. Values are converted to the types
in the function's schema.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from foredraft.server.tools.choice import Tool
from foredraft.server.tools.deltas import DeltaLog
from foredraft.server.tools.headed import Part, either, literal, optional, sequence
from foredraft.server.tools.values import STRING, json_value, types_of

_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_LONGEST_KEY: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Tags:
    """The texts before and after a call's name, a key and a value, and at its end. `lines`: a value is on
    lines of its own.
    """

    name: tuple[str, str]
    key: tuple[str, str]
    value: tuple[str, str]
    end: str
    lines: bool
    _closing: re.Pattern[str] = field(init=False)
    _begun: re.Pattern[str] = field(init=False)

    def __post_init__(self) -> None:
        line = (optional(literal("\n")),) if self.lines else ()
        follows = either(literal(self.key[0]), literal(self.end))
        closing = sequence(*line, literal(self.value[1]), Part(r"\s{0,64}", r"\s{0,64}"), follows)
        object.__setattr__(self, "_closing", re.compile(closing.whole))
        object.__setattr__(self, "_begun", re.compile(rf"{closing.begun}\Z"))

    def closing(self, text: str, at: int) -> re.Match[str] | None:
        """The end of a value in this text, from `at` on, up to the next key or the call's end."""
        return self._closing.search(text, at)

    def certain(self, text: str, at: int) -> int:
        """The length of this text, in which no value ends, that certainly belongs to the value."""
        found = self._begun.search(text, at)
        return found.start() if found else len(text)


class _Stage(Enum):
    OPENING = "the opening tag of the name"
    NAME = "the name"
    BETWEEN = "a key or the end"
    KEY = "a key"
    BEFORE_VALUE = "the opening tag of a value"
    VALUE = "a value"


class TaggedCall:
    """Reads one call; see CallReader."""

    def __init__(self, tools: Mapping[str, Tool], log: DeltaLog, tags: Tags) -> None:
        self.started = False
        self.done = False
        self.failed = False
        self.unread = ""
        self._tools = tools
        self._log = log
        self._tags = tags
        self._stage = _Stage.OPENING if tags.name[0] else _Stage.NAME
        self._tag = ""  # the received part of a tag
        self._name = ""
        self._key = ""
        self._types: frozenset[str] | None = None
        self._value = ""  # the received part of a value, not shown yet
        self._certain = 0  # the length of it that certainly belongs to the value
        self._line = False  # whether the line break before the value may still come
        self._streams = False
        self._first = True

    @property
    def complete(self) -> bool:
        """See CallReader."""
        return self.done

    def feed(self, text: str, at: int) -> int:
        """See CallReader."""
        while at < len(text) and not self.done:
            if self._stage is _Stage.VALUE:
                at = self._read_value(text, at)
            elif self._read_markup(text[at]):
                at += 1
            else:
                self.failed = True
                break
        return at

    # --- markup ----------------------------------------------------------------------------------------

    def _read_markup(self, char: str) -> bool:
        """Take a character outside a value. Returns False if it is invalid."""
        if self.started:
            self.unread += char
        fits = self._fits(char)
        if self.started and not fits:
            self.unread = self.unread[:-1]
        return fits

    def _fits(self, char: str) -> bool:
        match self._stage:
            case _Stage.OPENING:
                return self._tag_goes_on(char, {self._tags.name[0]: _Stage.NAME})
            case _Stage.NAME:
                return self._name_goes_on(char)
            case _Stage.KEY:
                return self._key_goes_on(char)
            case _Stage.BEFORE_VALUE:
                return self._tag_goes_on(char, {self._tags.value[0]: _Stage.VALUE})
            case _:
                return self._tag_goes_on(char, {self._tags.key[0]: _Stage.KEY, self._tags.end: None})

    def _tag_goes_on(self, char: str, tags: Mapping[str, _Stage | None]) -> bool:
        """Whether the character continues one of these tags, possibly after white space. None: the call's
        end.
        """
        if not self._tag and char.isspace():
            return True
        self._tag += char
        if self._tag in tags:
            self._enter(tags[self._tag])
            return True
        if any(tag.startswith(self._tag) for tag in tags):
            return True
        self._tag = self._tag[:-1]
        return False

    def _enter(self, stage: _Stage | None) -> None:
        """Enter the stage after a complete tag."""
        self._tag = ""
        if stage in (_Stage.KEY, None):
            self._announce()
            self.unread = ""
        if stage is None:
            self._log.arguments("{}" if self._first else "}")
            self.done = True
            return
        self._stage = stage
        if stage is _Stage.VALUE:
            self._begin_value()

    def _announce(self) -> None:
        if not self.started:
            self._log.start(self._name)
            self.started = True

    def _name_goes_on(self, char: str) -> bool:
        closing = self._tags.name[1]
        if _NAME.fullmatch(self._name + char):
            self._name += char
            return True
        if self._name not in self._tools:
            return False
        self._stage = _Stage.BETWEEN
        return char == closing if closing else self._fits(char)

    def _key_goes_on(self, char: str) -> bool:
        self._key += char
        closing = self._tags.key[1]
        if self._key.endswith(closing):
            self._key = self._key[: -len(closing)]
            self._enter(_Stage.BEFORE_VALUE if self._tags.value[0] else _Stage.VALUE)
            return True
        return char != "\n" and len(self._key) <= _LONGEST_KEY

    # --- values ----------------------------------------------------------------------------------------

    def _begin_value(self) -> None:
        parameters: Mapping[str, Any] = self._tools[self._name].parameters
        properties = parameters.get("properties")
        schema = properties.get(self._key) if isinstance(properties, Mapping) else None
        self._types = types_of(schema, parameters)
        self._streams = self._types == STRING
        self._value, self._certain, self._line = "", 0, self._tags.lines
        self.unread = ""
        if self._streams:
            self._show_key()
            self._log.arguments('"')

    def _show_key(self) -> None:
        comma = "{" if self._first else ", "
        self._first = False
        self._log.arguments(f"{comma}{json.dumps(self._key, ensure_ascii=False)}: ")

    def _read_value(self, text: str, at: int) -> int:
        self._value += text[at:]
        if self._line and self._value:
            self._value = self._value.removeprefix("\n")
            self._line = False
        found = self._tags.closing(self._value, self._certain)
        if found is None:
            self._certain = self._tags.certain(self._value, self._certain)
            if self._streams:
                self._log.arguments(_inside_string(self._value[: self._certain]))
                self._value, self._certain = self._value[self._certain :], 0
            return len(text)
        rest = len(self._value) - found.end()
        self._end_value(self._value[: found.start()])
        if found[0].endswith(self._tags.end):
            self._enter(None)
        else:
            self._enter(_Stage.KEY)
        return len(text) - rest

    def _end_value(self, value: str) -> None:
        if self._streams:
            self._log.arguments(f'{_inside_string(value)}"')
        else:
            self._show_key()
            self._log.arguments(json_value(value, self._types))
        self._key = self._value = ""


def _inside_string(text: str) -> str:
    """A piece of text, escaped for a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]
