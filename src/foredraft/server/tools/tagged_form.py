"""The dialects of tagged calls (see `tagged`) and their grammars: each argument by its schema, in its order.

JSON values follow their schemas. A bare text is any text of the length that its schema allows; a pattern
cannot be enforced, and is refused for strict functions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from foredraft.server.tools.choice import Tool, ToolChoice
from foredraft.server.tools.dialect import NO_CONTROL, Calls, ControlTokens, Forced, ToolParser, new_call_id
from foredraft.server.tools.parser import CallParser, Layout
from foredraft.server.tools.readers import ObjectCall
from foredraft.server.tools.schema import (
    ROOM,
    argument_schema,
    embedded,
    prepared,
    properties_of,
    unfollowable,
)
from foredraft.server.tools.tagged import TaggedCall, Tags
from foredraft.server.tools.values import TYPES, alternatives, types_of

_KEY: Final = r"/[^<>\n]{1,64}/"
_OF_TEXT: Final = frozenset({"type", "minLength", "maxLength"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Tagged:
    """See Dialect. Calls are between `opening` and `closing`, which may also be the end tag. If the name has
    its own tag, that tag also starts a call by itself: models sometimes omit the outer one.
    """

    name: str
    tags: Tags
    opening: str
    closing: str
    one_call_a_message: bool = False
    always_read: bool = False

    @property
    def markers(self) -> tuple[str, ...]:
        """See Dialect."""
        tags = (*self.tags.key, *self.tags.value, self.tags.end)
        whole = [tag for tag in tags if tag.startswith("<") and tag.endswith(">")]
        return tuple(dict.fromkeys([self.opening, self.closing, *whole]))

    def parser(self, tools: Sequence[Tool], new_id: Callable[[], str] = new_call_id) -> ToolParser:
        """See Dialect."""
        begin = self.tags.name[0]
        opens = {self.opening: "open"} | ({begin: "call"} if begin else {})
        layout = Layout(
            start="text",
            steps={
                "text": opens,
                "broken": {self.closing: "text", **opens},
                "open": {"{": "object", begin: "call"},
                "after": {self.closing: "text", **opens},
            },
            readers={"object": ObjectCall, "call": partial(TaggedCall, tags=self.tags)},
        )
        return CallParser(layout, tools, new_id)

    def grammar(
        self, tools: Sequence[Tool], choice: ToolChoice, control: ControlTokens = NO_CONTROL
    ) -> Forced | None:
        """See Dialect. The answer starts inside the first tag."""
        if not choice.forced:
            return None
        rules = _Rules(self, control)
        call = rules.call(choice.callable(tools))
        more = "" if choice.once else f' ("\\n" {control.spelled(self.opening)} call)*'
        source = "\n".join([f"start: call{more}", f"call: {call}", *rules.lines, ""])
        return Forced("grammar", source, self.opening)

    def calls(self, tools: Sequence[Tool], choice: ToolChoice, control: ControlTokens) -> Calls:
        """See Dialect."""
        rules = _Rules(self, control)
        lines = [f"calls: {rules.call(tools)}", *rules.lines]
        if not (begin := self.tags.name[0]):
            return Calls(marker=self.opening, rules=lines, once=choice.once)
        return Calls(
            marker=self.opening,
            rules=lines,
            once=choice.once,
            bare_in_text=[f"begun ({rules.named}) (GAP {control.spelled(self.closing)})?"],
            text_rules=[f"begun[lazy]: TEXT {json.dumps(begin)}"],
        )

    def template_id(self, call_id: str) -> str:
        """See Dialect. The templates ignore ids."""
        return call_id


@dataclass(frozen=True, slots=True)
class _Argument:
    """An argument of a function, whose prepared parameters are `root`."""

    tool: Tool
    key: str
    root: Mapping[str, Any]


class _Rules:
    """Collects the Lark rules of calls."""

    def __init__(self, form: Tagged, control: ControlTokens) -> None:
        self._tags = form.tags
        self._control = control
        self._closing = "" if form.closing == form.tags.end else f" GAP {control.spelled(form.closing)}"
        self.lines: list[str] = [r"GAP: /[ \t\r\n]{0,4}/"]
        self.named = ""
        self._room = ROOM
        self._texts: dict[tuple[int, int | None], str] = {}

    def call(self, tools: Sequence[Tool]) -> str:
        """The rule for a call of any of these tools; sets `named` to its part from the name on."""
        self.named = " | ".join(self._call(tool, index) for index, tool in enumerate(tools))
        begin = f"{json.dumps(self._tags.name[0])} " if self._tags.name[0] else ""
        return f"GAP {begin}({self.named}){self._closing}"

    def _call(self, tool: Tool, index: int) -> str:
        named = [json.dumps(f"{tool.name}{self._tags.name[1]}"), *self._arguments(tool, index)]
        return " ".join([*named, "GAP", self._control.spelled(self._tags.end)])

    def _arguments(self, tool: Tool, index: int) -> Iterator[str]:
        """The function's arguments, with optional ones marked; any arguments if they are not listed."""
        properties = properties_of(tool)
        required = tool.parameters.get("required") or ()
        if properties is None:
            yield f"(GAP {self._keyed(_KEY)} {self._text(0, None)})*"
            return
        root = prepared(tool)
        for place, (key, schema) in enumerate(properties.items()):
            rule = f"argument_{index}_{place}"
            value = self._value(_Argument(tool, key, root), schema)
            self.lines.append(f"{rule}: {self._keyed(json.dumps(key))} {value}")
            yield f"(GAP {rule})" if key in required else f"(GAP {rule})?"

    def _keyed(self, key: str) -> str:
        """A key and everything before its value."""
        line = ['"\\n"'] if self._tags.lines else []
        tags = (self._tags.key[0], key, self._tags.key[1], self._tags.value[0])
        spelled = [tag if tag is key else self._control.spelled(tag) for tag in tags if tag]
        if self._tags.value[0]:
            spelled.insert(3, "GAP")
        return " ".join([*spelled, *line])

    def _value(self, argument: _Argument, schema: object) -> str:
        """A value of this schema and its closing tag."""
        parts = alternatives(schema, argument.root)
        found: list[str] = []
        for part in _by_type(parts or ()):
            if self._room < 0:
                break
            found.append(self._alternative(argument, part))
            self._room -= len(found[-1])
        else:
            if found:
                return f"({' | '.join(found)})" if len(found) > 1 else found[0]
        if argument.tool.strict:
            raise unfollowable(argument.tool, f"{argument.key!r} has too many alternatives, or none")
        return self._text(0, None)

    def _alternative(self, argument: _Argument, given: Mapping[str, Any]) -> str:
        """A value of a schema without alternatives, and its closing tag."""
        fixed = given.get("enum") or ([given["const"]] if "const" in given else [])
        if fixed and not any(isinstance(value, list | dict) for value in fixed):
            return f"({' | '.join(json.dumps(_bare(value)) for value in fixed)}) {self._end()}"
        types = types_of(given, argument.root)
        if types is not None and "string" not in types:
            rule = f"json_{len(self.lines)}"
            self.lines.append(f"{rule}: %json {embedded(argument_schema(argument.tool, given))}")
            self._room -= len(self.lines[-1])
            return f"{rule} {self._end()}"
        if argument.tool.strict and (odd := sorted(set(given) - _OF_TEXT)):
            raise unfollowable(argument.tool, f"the unquoted value {argument.key!r} has {odd[0]!r}")
        return self._text(*_length(given))

    def _end(self) -> str:
        line = '"\\n" ' if self._tags.lines else ""
        return f"{line}{self._control.spelled(self._tags.value[1])}"

    def _text(self, least: int, most: int | None) -> str:
        """The rule for an unquoted text of such a length and its closing tag."""
        rule = self._texts.get((least, most))
        if rule is None:
            rule = self._texts[least, most] = f"text_{len(self._texts)}"
            times = "*" if (least, most) == (0, None) else f"{{{least},{'' if most is None else most}}}"
            line = "\n" if self._tags.lines else ""
            closing = self._tags.value[1]
            if closing in self._control.markers:
                # The line break before the tag is part of an unrestricted text.
                self.lines.append(f"{rule}: /(?s:.{times})/ {self._control.spelled(closing)}")
            else:
                self.lines.append(f"{rule}[lazy]: /(?s:.{times})/ {json.dumps(line + closing)}")
        return rule


def _by_type(schemas: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Split schemas into ones with a single type."""
    for schema in schemas:
        kinds = schema.get("type")
        if "enum" in schema or "const" in schema or not isinstance(kinds, list):
            yield schema
            continue
        for name in TYPES:
            if name in kinds:
                yield {**schema, "type": name}


def _bare(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _length(schema: Mapping[str, Any]) -> tuple[int, int | None]:
    """The minimum and maximum number of characters of a text."""
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    return (least if isinstance(least, int) else 0), (most if isinstance(most, int) else None)
