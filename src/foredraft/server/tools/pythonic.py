"""Calls in Python, `[NAME(key=value, …), …]`: Gemma 3, LFM 2, and some templates of Llama 3.2 and 4.

The list is at the very start of the answer, after a marker, or in a code fence `tool_code`, where the
brackets may be missing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from foredraft.server.tools.choice import Tool, ToolChoice
from foredraft.server.tools.dialect import NO_CONTROL, Calls, ControlTokens, Forced, ToolParser, new_call_id
from foredraft.server.tools.headed import NAME, SPACE, Head, sequence
from foredraft.server.tools.literals import MembersCall, Notation
from foredraft.server.tools.parser import CallParser, Layout
from foredraft.server.tools.schema import (
    ROOM,
    argument_schema,
    embedded,
    members,
    properties_of,
    unfollowable,
)

FENCE: Final = "```tool_code"
LFM_OPEN: Final = "<|tool_call_start|>"
LFM_CLOSE: Final = "<|tool_call_end|>"

_NOTATION: Final = Notation(opening="(", separator="=", quotes=('"', "'"))
_READER: Final = partial(MembersCall, head=Head(sequence(NAME, SPACE)), notation=_NOTATION)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pythonic:
    """See Dialect."""

    name: str
    opening: str = FENCE
    closing: str = "```"
    bare: bool = True
    one_call_a_message: bool = False
    always_read: bool = False

    @property
    def markers(self) -> tuple[str, ...]:
        """See Dialect."""
        return (self.opening, self.closing)

    def parser(self, tools: Sequence[Tool], new_id: Callable[[], str] = new_call_id) -> ToolParser:
        """See Dialect."""
        opens = {self.opening: "open"}
        layout = Layout(
            start="start" if self.bare else "text",
            steps={
                "start": {**opens, "[": "item"},
                "text": opens,
                "broken": {self.closing: "text", **opens},
                "open": {"[": "item", "": "call"},
                "item": {"": "call"},
                "after": {",": "item", ";": "open", "]": "listed", self.closing: "text", **opens},
                "listed": {self.closing: "text", **opens},
            },
            readers={"call": _READER},
            quiet=frozenset({"after", "listed"}),
        )
        return CallParser(layout, tools, new_id)

    def grammar(
        self,
        tools: Sequence[Tool],
        choice: ToolChoice,
        control: ControlTokens = NO_CONTROL,
    ) -> Forced | None:
        """See Dialect. The list is the answer, or follows the marker."""
        if not choice.forced:
            return None
        listed, *rules = _rules(choice.callable(tools), once=choice.once)
        end = "" if self.bare else f" {control.spelled(self.closing)}"
        source = "\n".join([f"start: {listed}{end}", *rules, ""])
        return Forced("grammar", source, "" if self.bare else self.opening)

    def calls(self, tools: Sequence[Tool], choice: ToolChoice, control: ControlTokens) -> Calls:
        """See Dialect."""
        listed, *rules = _rules(tools, once=choice.once)
        lines = [f"calls: SPACE {listed} SPACE {control.spelled(self.closing)}", *rules]
        if not self.bare:
            return Calls(marker=self.opening, rules=lines, once=choice.once)
        # A list at the start that looks like a call must be one.
        begun = [rf"begun_{index}[lazy]: /\s*\[\s*{tool.name}\s*\(/" for index, tool in enumerate(tools)]
        names = "|".join(tool.name for tool in tools)
        return Calls(
            marker=self.opening,
            rules=lines,
            once=choice.once,
            bare=[listed],
            bare_in_text=[f"begun_{index} rest_{index}" for index in range(len(tools))],
            text_rules=[*begun, *_rests(tools, once=choice.once)],
            text=rf"/(?s:.*)/ & ~/\s*\[\s*({names})\s*\((?s:.*)/",
        )

    def template_id(self, call_id: str) -> str:
        """See Dialect. The templates ignore ids."""
        return call_id


def _rules(tools: Sequence[Tool], *, once: bool) -> list[str]:
    """The list of calls and its Lark rules: keywords in the schema's order, required ones first."""
    rules: list[str] = []
    calls: list[str] = []
    for index, tool in enumerate(tools):
        rules.append(f"arguments_{index}: {_arguments(tool, index, rules)}")
        calls.append(f'{json.dumps(tool.name)} "(" arguments_{index} ")"')
    more = "" if once else ' (", " call)*'
    return [f'"[" call{more} "]"', f"call: {' | '.join(calls)}", *rules]


def _rests(tools: Sequence[Tool], *, once: bool) -> list[str]:
    """The rest of a list after the first call's bracket, by function."""
    more = "" if once else ' (SPACE "," SPACE call)*'
    return [f'rest_{index}: arguments_{index} ")"{more} SPACE "]"' for index in range(len(tools))]


def _arguments(tool: Tool, index: int, rules: list[str]) -> str:
    properties = properties_of(tool)
    required = tool.parameters.get("required") or ()
    if properties is None:
        rules.append(f'any_{index}: /[a-zA-Z_][a-zA-Z0-9_]{{0,63}}/ "=" any_value_{index}')
        rules.append(f"any_value_{index}: %json {{}}")
        return f'(any_{index} (", " any_{index})*)?'
    must: list[str] = []
    may: list[str] = []
    room = ROOM
    for place, (key, schema) in enumerate(properties.items()):
        rules.append(f"argument_{index}_{place}: {json.dumps(f'{key}=')} value_{index}_{place}")
        if room < 0 and tool.strict:
            raise unfollowable(tool, "written out, they are too long")
        rules.append(
            f"value_{index}_{place}: %json {embedded(argument_schema(tool, schema if room >= 0 else {}))}"
        )
        room -= len(rules[-1])
        (must if key in required else may).append(f"argument_{index}_{place}")
    return members(must, may, ", ")


PYTHONIC: Final = Pythonic(name="pythonic")
LFM: Final = Pythonic(name="lfm", opening=LFM_OPEN, closing=LFM_CLOSE, bare=False)
