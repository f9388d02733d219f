"""Calls as a JSON list after a marker: `MARKER[{"name": …, "arguments": {…}}, …]CLOSING`.

Shared by Phi 4, Granite 3 and Command; their files define the differences. A single call without the list's
brackets is also parsed, and the closing marker may be missing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from foredraft.server.tools.choice import Tool, ToolChoice
from foredraft.server.tools.dialect import NO_CONTROL, Calls, ControlTokens, Forced, ToolParser, new_call_id
from foredraft.server.tools.parser import CallParser, Layout
from foredraft.server.tools.readers import ObjectCall
from foredraft.server.tools.schema import call_schema, embedded


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """See Dialect. `extra`: further members of a call that the model was trained to write; `thinking` and
    `saying`: the pairs of markers around reasoning and around text.
    """

    name: str
    opening: str
    closing: str = ""
    name_key: str = "name"
    arguments_key: str = "arguments"
    extra: tuple[tuple[str, dict[str, Any]], ...] = ()
    thinking: tuple[str, ...] = ()
    saying: tuple[str, ...] = ()
    one_call_a_message: bool = False

    @property
    def markers(self) -> tuple[str, ...]:
        """See Dialect."""
        return tuple(filter(None, (self.opening, self.closing, *self.thinking, *self.saying)))

    @property
    def always_read(self) -> bool:
        """See Dialect."""
        return bool(self.thinking or self.saying)

    def parser(self, tools: Sequence[Tool], new_id: Callable[[], str] = new_call_id) -> ToolParser:
        """See Dialect."""
        return CallParser(self._layout(), tools, new_id)

    def _layout(self) -> Layout:
        beside = dict.fromkeys((*self.thinking[1:], *self.saying), "text")
        beside |= dict.fromkeys(self.thinking[:1], "thinking")
        ends = {self.closing: "text"} if self.closing else {}
        opens = {self.opening: "open"}
        return Layout(
            start="text",
            steps={
                "text": {**opens, **beside},
                "thinking": {**opens, **beside},
                "broken": {**ends, **opens, **beside},
                "open": {"[": "item", "{": "call"},
                "item": {"{": "call"},
                "after": {",": "item", "]": "listed", **ends, **opens},
                "listed": {**ends, **opens, **beside},
            },
            readers={"call": partial(ObjectCall, name_key=self.name_key)},
            reasoning=frozenset({"thinking"}),
            quiet=frozenset({"after", "listed"}),
        )

    def grammar(
        self, tools: Sequence[Tool], choice: ToolChoice, control: ControlTokens = NO_CONTROL
    ) -> Forced | None:
        """See Dialect. The answer starts after the marker."""
        if not choice.forced:
            return None
        rules = self._rules("start", choice.callable(tools), control, once=choice.once)
        return Forced("grammar", "\n".join([*rules, ""]), self.opening)

    def calls(self, tools: Sequence[Tool], choice: ToolChoice, control: ControlTokens) -> Calls:
        """See Dialect."""
        rules = self._rules("calls", tools, control, once=choice.once)
        beside = (*self.thinking, *self.saying)
        return Calls(marker=self.opening, rules=rules, once=choice.once, layout=beside)

    def _rules(self, rule: str, tools: Sequence[Tool], control: ControlTokens, *, once: bool) -> list[str]:
        call = call_schema(tools, arguments=self.arguments_key, name=self.name_key, extra=dict(self.extra))
        shared = call.pop("$defs")
        most = {"maxItems": 1} if once else {}
        schema = {"type": "array", "items": call, "minItems": 1, **most, "$defs": shared}
        end = f" /[ \\t\\r\\n]{{0,4}}/ {control.spelled(self.closing)}" if self.closing else ""
        return [f"{rule}: /[ \\t\\r\\n]{{0,4}}/ array{end}", f"array: %json {embedded(schema)}"]

    def template_id(self, call_id: str) -> str:
        """See Dialect. The templates ignore ids."""
        return call_id
