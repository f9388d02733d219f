"""Grammars of values in Gemma's notation: quoted texts, bare keys, everything else as in JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from foredraft.server.tools.choice import Tool
from foredraft.server.tools.dialect import ControlTokens
from foredraft.server.tools.schema import members, prepared, unfollowable
from foredraft.server.tools.values import TYPES, referred

_KEYWORDS: Final = frozenset(
    {"type", "properties", "required", "additionalProperties", "items", "enum", "const", "$ref", "$defs"}
    | {"definitions", "$schema", "$id", "id", "$anchor", "x-guidance", "anyOf", "oneOf"}
)
_SCALARS: Final = ("integer", "number", "boolean", "null")
_MOST: Final = 20_000
"""Maximum values in the rules of one function's arguments."""


class NotationRules:
    """Collects the Lark rules of arguments: a schema's members in its order, required ones first.

    A strict function is refused if its schema contains more than types, members, items and listed values.
    """

    def __init__(self, quote: str, control: ControlTokens) -> None:
        mark = control.spelled(quote)
        if quote in control.markers:
            text = [f"text: {mark} /(?s:.*)/ {mark}"]
        else:
            text = [f"text: {mark} text_end", f"text_end[lazy]: /(?s:.*)/ {mark}"]
        scalar = json.dumps({"type": list(_SCALARS)})
        self.lines = [
            *text,
            f"any: text | any_scalar | any_list | any_members\nany_scalar: %json {scalar}",
            'any_list: "[" (any ("," any)*)? "]"',
            'any_members: "{" (any_key ":" any ("," any_key ":" any)*)? "}"',
            r"any_key: /[a-zA-Z0-9_\-]{1,64}/",
        ]
        self._mark = mark
        self._tool = Tool("")
        self._root: Mapping[str, Any] = {}
        self._referred: dict[str, str] = {}
        self._left = _MOST

    def arguments(self, tool: Tool) -> str:
        """The rule for all arguments of a function, with brackets."""
        self._tool, self._root, self._referred, self._left = tool, prepared(tool), {}, _MOST
        return self._value(self._root)

    def _add(self, expression: str) -> str:
        rule = f"value_{len(self.lines)}"
        self.lines.append(f"{rule}: {expression}")
        return rule

    def _value(self, schema: object) -> str:
        self._left -= 1
        if self._left < 0 and self._tool.strict:
            raise unfollowable(self._tool, "they are too many")
        if self._left < 0 or not isinstance(schema, Mapping):
            return "any"
        if self._tool.strict and (odd := sorted(set(schema) - _KEYWORDS)):
            raise unfollowable(self._tool, f"they have {odd[0]!r}")
        if "$ref" in schema:
            return self._reference(schema["$ref"])
        for key in ("anyOf", "oneOf"):
            if isinstance(schema.get(key), list):
                return f"({' | '.join(self._value(part) for part in schema[key])})"
        listed = schema.get("enum") or ([schema["const"]] if "const" in schema else [])
        if listed:
            return f"({' | '.join(self._literal(value) for value in listed)})"
        kind = schema.get("type")
        kinds = kind if isinstance(kind, list | tuple) else [kind]
        # Each type once: nested members that repeat a type would expand without end.
        found = [self._of_type(name, schema) for name in TYPES if name in kinds]
        return f"({' | '.join(found)})" if found else "any"

    def _of_type(self, kind: object, schema: Mapping[str, Any]) -> str:
        if kind == "string":
            return "text"
        if kind == "array":
            item = self._value(schema.get("items"))
            return f'"[" ({item} ("," {item})*)? "]"'
        if kind == "object":
            return self._members(schema)
        return self._add(f"%json {json.dumps({'type': kind})}") if kind in _SCALARS else "any"

    def _reference(self, reference: object) -> str:
        """The rule for the target of a reference, which may be recursive."""
        place = str(reference)
        if place not in self._referred:
            rule = f"referred_{len(self.lines)}"
            self._referred[place] = rule
            at = len(self.lines)
            self.lines.append("")
            self.lines[at] = f"{rule}: {self._value(referred(place, self._root))}"
        return self._referred[place]

    def _members(self, schema: Mapping[str, Any]) -> str:
        properties = schema.get("properties")
        if not isinstance(properties, Mapping) or not properties:
            return '"{" "}"' if schema.get("additionalProperties") is False else "any_members"
        required = schema.get("required") or ()
        must = [self._member(key, properties[key]) for key in properties if key in required]
        may = [self._member(key, properties[key]) for key in properties if key not in required]
        return f'"{{" {members(must, may, ",")} "}}"'

    def _member(self, key: str, schema: object) -> str:
        return self._add(f"{json.dumps(f'{key}:')} {self._value(schema)}")

    def _literal(self, value: object) -> str:
        """A listed value in this notation."""
        if isinstance(value, str):
            return f"{self._mark} {json.dumps(value)} {self._mark}" if value else f"{self._mark} {self._mark}"
        if isinstance(value, list | dict):
            return "any"
        return json.dumps(json.dumps(value))
