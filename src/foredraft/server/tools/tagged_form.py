"""The dialects of tagged calls (see `tagged`), and their grammars: each argument by its schema, in its order.

Values that are JSON follow their schemas. A bare text is any text, of the length that its schema allows; a
pattern it cannot be held to, which is refused where the function is strict.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from foredraft.server.tools.choice import Tool, ToolChoice
from foredraft.server.tools.dialect import NO_CONTROL, Calls, ControlTokens, Forced, ToolParser, new_call_id
from foredraft.server.tools.parser import CallParser, Layout
from foredraft.server.tools.readers import ObjectCall
from foredraft.server.tools.schema import definitions, embedded, prepared, properties_of, unfollowable
from foredraft.server.tools.tagged import TaggedCall, Tags
from foredraft.server.tools.values import STRING, types_of

_KEY: Final = r"/[^<>\n]{1,64}/"
_TEXT_KEYWORDS: Final = frozenset({"pattern", "format", "allOf", "not", "if"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Tagged:
    """See Dialect. Calls stand between `opening` and `closing`; the end of the tags may be that as well."""

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
        layout = Layout(
            start="text",
            steps={
                "text": {self.opening: "open"},
                "broken": {self.closing: "text", self.opening: "open"},
                "open": {"{": "object", begin: "call"},
                "after": {self.closing: "text", self.opening: "open"} | ({begin: "call"} if begin else {}),
            },
            readers={"object": ObjectCall, "call": partial(TaggedCall, tags=self.tags)},
        )
        return CallParser(layout, tools, new_id)

    def grammar(
        self, tools: Sequence[Tool], choice: ToolChoice, control: ControlTokens = NO_CONTROL
    ) -> Forced | None:
        """See Dialect. The answer begins inside the first tag."""
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
        call = rules.call(tools)
        return Calls(marker=self.opening, rules=[f"calls: {call}", *rules.lines], once=choice.once)

    def template_id(self, call_id: str) -> str:
        """See Dialect. The templates do not look at ids."""
        return call_id


class _Rules:
    """Collects the Lark rules of calls."""

    def __init__(self, form: Tagged, control: ControlTokens) -> None:
        self._tags = form.tags
        self._control = control
        self._closing = "" if form.closing == form.tags.end else f" GAP {control.spelled(form.closing)}"
        self.lines: list[str] = [r"GAP: /[ \t\r\n]{0,4}/"]
        self._texts: dict[tuple[int, int | None], str] = {}

    def call(self, tools: Sequence[Tool]) -> str:
        """One call of any of these."""
        calls = [self._call(tool, index) for index, tool in enumerate(tools)]
        return f"GAP ({' | '.join(calls)}){self._closing}"

    def _call(self, tool: Tool, index: int) -> str:
        before, after = self._tags.name
        named = [json.dumps(f"{before}{tool.name}{after}"), *self._arguments(tool, index)]
        return " ".join([*named, "GAP", self._control.spelled(self._tags.end)])

    def _arguments(self, tool: Tool, index: int) -> Iterator[str]:
        """The function's arguments, those that need not be there marked so; any, if it does not list them."""
        properties = properties_of(tool)
        required = tool.parameters.get("required") or ()
        if properties is None:
            yield f"(GAP {self._keyed(_KEY)} {self._text(0, None)})*"
            return
        shared = definitions([tool])
        for place, (key, schema) in enumerate(properties.items()):
            rule = f"argument_{index}_{place}"
            self.lines.append(
                f"{rule}: {self._keyed(json.dumps(key))} {self._value(tool, key, schema, shared)}"
            )
            yield f"(GAP {rule})" if key in required else f"(GAP {rule})?"

    def _keyed(self, key: str) -> str:
        """A key and all that stands before its value."""
        line = ['"\\n"'] if self._tags.lines else []
        tags = (self._tags.key[0], key, self._tags.key[1], self._tags.value[0])
        spelled = [tag if tag is key else self._control.spelled(tag) for tag in tags if tag]
        if self._tags.value[0]:
            spelled.insert(3, "GAP")
        return " ".join([*spelled, *line])

    def _value(self, tool: Tool, key: str, schema: Any, shared: Mapping[str, Any]) -> str:
        types = types_of(schema, prepared(tool))
        fixed = _fixed(schema)
        if fixed is not None and types == STRING:
            return f"({' | '.join(json.dumps(value) for value in fixed)}) {self._end()}"
        if types is None or "string" in types:
            if tool.strict and (types != STRING or _TEXT_KEYWORDS.intersection(schema)):
                raise unfollowable(tool, f"{key!r} is a text with a pattern, a format or another type")
            return self._text(*_length(schema))
        place = key.replace("~", "~0").replace("/", "~1")
        body = {"$ref": f"#/$defs/{tool.name}/properties/{place}", "$defs": shared}
        rule = f"json_{len(self.lines)}"
        self.lines.append(f"{rule}: %json {embedded(body)}")
        return f"{rule} {self._end()}"

    def _end(self) -> str:
        line = '"\\n" ' if self._tags.lines else ""
        return f"{line}{self._control.spelled(self._tags.value[1])}"

    def _text(self, least: int, most: int | None) -> str:
        """The rule for a bare text of such a length and its closing tag."""
        rule = self._texts.get((least, most))
        if rule is None:
            rule = self._texts[least, most] = f"text_{len(self._texts)}"
            times = "*" if (least, most) == (0, None) else f"{{{least},{'' if most is None else most}}}"
            line = "\n" if self._tags.lines else ""
            closing = self._tags.value[1]
            if closing in self._control.markers:
                # The line break before the tag is the text's: a text that may be anything takes it.
                self.lines.append(f"{rule}: /(?s:.{times})/ {self._control.spelled(closing)}")
            else:
                self.lines.append(f"{rule}[lazy]: /(?s:.{times})/ {json.dumps(line + closing)}")
        return rule


def _fixed(schema: Any) -> list[str] | None:
    """The values that a schema lists, if they are texts."""
    listed = schema.get("enum") or ([schema["const"]] if "const" in schema else None)
    return listed if listed and all(isinstance(value, str) for value in listed) else None


def _length(schema: Any) -> tuple[int, int | None]:
    """The least and most characters of a text."""
    given = schema if isinstance(schema, Mapping) else {}
    least, most = given.get("minLength", 0), given.get("maxLength")
    return (least if isinstance(least, int) else 0), (most if isinstance(most, int) else None)
