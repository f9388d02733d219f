"""Keeps text from clients plain text: nothing in it becomes a control token.

Characters of a client's text that are part of a control token's text are replaced by private-use characters,
one for one, before the chat template is rendered, and restored afterwards. So the template may cut, trim,
join or escape the text, and every character is still known to be the client's or the template's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from itertools import chain, islice
from typing import Any, Final

from foredraft.errors import RequestError
from foredraft.templates.chat import plain_data
from foredraft.templates.control_texts import ControlTexts, Span
from foredraft.types import Message

_PRIVATE: Final = range(0xE000, 0xF900)
_USED: Final = re.compile(r"[\ue000-\uf8ff]|\\u([ef][0-9a-f]{3})")
"""A private-use character as it is, and as JSON and Python's repr escape it."""


class _Place(Enum):
    """Who determines the keys of a mapping."""

    API = "the API"
    NAMED = "the client, but the API determines the keys inside the values"
    DATA = "the client, also inside the values"


# fmt: off
_NAMES: Final = frozenset([
    "role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content", "reasoning", "thinking",
    "type", "text", "id", "function", "arguments", "description", "parameters", "strict", "title", "return",
    "properties", "required", "items", "enum", "const", "default", "format", "nullable", "examples",
    "anyOf", "oneOf", "allOf", "additionalProperties", "$defs", "definitions", "$ref", "$schema",
])
"""Keys of messages, their parts and calls, of functions, and of the schemas of their parameters."""

# fmt: on
_TYPES: Final = frozenset(
    ["text", "thinking", "function", "string", "integer", "number", "boolean", "array", "object", "null"]
)
_INSIDE: Final[Mapping[str, _Place]] = {
    **dict.fromkeys(("properties", "patternProperties", "$defs", "definitions"), _Place.NAMED),
    **dict.fromkeys(("arguments", "enum", "const", "default", "examples"), _Place.DATA),
}


class Shield:
    """A conversation prepared for a chat template: `messages` and `variables`.

    Roles are unchanged: templates write them between marks, and clients cannot choose them freely. Names of
    variables and the API's keys are unchanged too, because templates look for them.
    """

    def __init__(
        self, control: ControlTexts, messages: Sequence[Message], variables: Mapping[str, object]
    ) -> None:
        given = plain_data([messages, variables])
        roles = [message["role"] for message in given[0]]
        texts = _texts(given)
        spelled = {char for text in texts for span in control.risky(text) for char in text[slice(*span)]}
        self._stands_for = _stand_ins(spelled, texts) if spelled else {}
        if spelled:
            table = {ord(char): stand_in for stand_in, char in self._stands_for.items()}
            changed = partial(_changed, change=lambda text: _hidden(text, control.risky(text), table))
            given = [changed(given[0]), {name: changed(value) for name, value in given[1].items()}]
        self.messages: list[dict[str, Any]]
        self.messages, self.variables = given
        for message, role in zip(self.messages, roles, strict=True):
            message["role"] = role

    def mark(self) -> str:
        """A character that is nowhere in the conversation. Raises RequestError if there is none."""
        return next(iter(_stand_ins({"mark"}, _texts([self.messages, self.variables]))))

    def restored(self, text: str) -> tuple[str, list[Span]]:
        """The original of a rendered text, and the parts of client text that look like control tokens."""
        if not self._stands_for:
            return text, []
        pieces: list[str] = []
        literal: list[Span] = []
        done = length = 0
        for found in _USED.finditer(text):
            stand_in = chr(int(found[1], 16)) if found[1] else found[0]
            if stand_in in self._stands_for:
                pieces += [text[done : found.start()], self._stands_for[stand_in]]
                length += found.start() - done + 1
                done = found.end()
                literal.append((length - 1, length))
        return "".join([*pieces, text[done:]]), literal


def _texts(value: Any) -> list[str]:
    """All texts in a plain value."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return list(chain.from_iterable(map(_texts, chain(value.keys(), value.values()))))
    return list(chain.from_iterable(map(_texts, value))) if isinstance(value, list) else []


def _changed(value: Any, change: Callable[[str], str], place: _Place = _Place.API) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_changed(item, change, place) for item in value]
    if not isinstance(value, Mapping):
        return value
    found: dict[Any, Any] = {}
    for key, item in value.items():
        ours = place is _Place.API
        inside = _INSIDE.get(key, place) if ours else _Place.API if place is _Place.NAMED else place
        stays = ours and key == "type" and isinstance(item, str) and item in _TYPES
        name = key if ours and key in _NAMES else _changed(key, change)
        found[name] = item if stays else _changed(item, change, inside)
    return found


def _hidden(text: str, spans: Sequence[Span], table: Mapping[int, str]) -> str:
    """The text with the characters of the spans replaced."""
    chars = list(text)
    for start, end in spans:
        chars[start:end] = text[start:end].translate(table)
    return "".join(chars)


def _stand_ins(chars: set[str], texts: Sequence[str]) -> dict[str, str]:
    """A private-use character for each of these, none of which occurs in a text. Raises RequestError."""
    return dict(zip(unused_characters(len(chars), texts), sorted(chars), strict=True))


def unused_characters(count: int, texts: Sequence[str]) -> list[str]:
    """Private-use characters that occur in no text. Raises RequestError if there are too few."""
    used = {found[0][-4:] for text in texts for found in _USED.finditer(text)}
    free = (chr(code) for code in _PRIVATE if chr(code) not in used and f"{code:x}" not in used)
    chosen = list(islice(free, count))
    if len(chosen) < count:
        raise RequestError("The messages use all private-use characters of Unicode.")
    return chosen
