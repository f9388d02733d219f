"""DeepSeek: a list of calls between markers, each call between markers of its own.

A call is `name<｜tool▁sep｜>{…}` since V3.1. In V3 and R1 it is `function<｜tool▁sep｜>name`, followed by the
arguments in a code fence.

Both forms are parsed with any template; the template determines the form of forced calls.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from foredraft.server.tools.choice import Tool, ToolChoice
from foredraft.server.tools.dialect import NO_CONTROL, Calls, ControlTokens, Forced, ToolParser, new_call_id
from foredraft.server.tools.headed import NAME, SPACE, Head, HeadedCall, literal, optional, sequence
from foredraft.server.tools.parser import CallParser, Layout
from foredraft.server.tools.schema import argument_rules

CALLS: Final = "<｜tool▁calls▁begin｜>"
CALLS_END: Final = "<｜tool▁calls▁end｜>"
CALL: Final = "<｜tool▁call▁begin｜>"
CALL_END: Final = "<｜tool▁call▁end｜>"
SEPARATOR: Final = "<｜tool▁sep｜>"
FENCE: Final = "```json"

_HEAD: Final = Head(
    sequence(
        optional(literal(f"function{SEPARATOR}")), NAME, SPACE,
        optional(literal(SEPARATOR)), SPACE, optional(literal(FENCE)), SPACE,
    )
)  # fmt: skip

LAYOUT: Final = Layout(
    start="text",
    steps={
        "text": {CALLS: "open"},
        "broken": {CALL_END: "between", CALLS_END: "text", CALLS: "open"},
        "open": {CALL: "begun"},
        "begun": {"": "call"},
        "after": {"```": "after", CALL_END: "between", CALLS_END: "text", CALL: "begun"},
        "between": {CALL: "begun", CALLS_END: "text"},
    },
    readers={"call": partial(HeadedCall, head=_HEAD)},
    quiet=frozenset({"after", "between"}),
)


@dataclass(frozen=True, slots=True)
class DeepSeek:
    """See Dialect. `fenced`: the older form, with the arguments in a code fence."""

    name: str = "deepseek"
    fenced: bool = False
    markers: tuple[str, ...] = (CALLS, CALLS_END, CALL, CALL_END, SEPARATOR)
    one_call_a_message: bool = False
    always_read: bool = False

    def parser(self, tools: Sequence[Tool], new_id: Callable[[], str] = new_call_id) -> ToolParser:
        """See Dialect."""
        return CallParser(LAYOUT, tools, new_id)

    def grammar(
        self, tools: Sequence[Tool], choice: ToolChoice, control: ControlTokens = NO_CONTROL
    ) -> Forced | None:
        """See Dialect. The answer starts with the first call's head."""
        if not choice.forced:
            return None
        rules = self._rules("start", choice.callable(tools), control, once=choice.once)
        return Forced("grammar", "\n".join([*rules, ""]), f"{CALLS}{CALL}{self._before}")

    @property
    def _before(self) -> str:
        """The text before a function's name."""
        return f"function{SEPARATOR}" if self.fenced else ""

    def calls(self, tools: Sequence[Tool], choice: ToolChoice, control: ControlTokens) -> Calls:
        """See Dialect."""
        before = f"SPACE {control.spelled(CALL)} {self._spelled_before(control)}"
        rules = self._rules("listed", tools, control, once=choice.once)
        return Calls(marker=CALLS, rules=[f"calls: {before} listed", *rules], once=choice.once)

    def _spelled_before(self, control: ControlTokens) -> str:
        return f'"function" {control.spelled(SEPARATOR)}' if self.fenced else ""

    def _rules(self, rule: str, tools: Sequence[Tool], control: ControlTokens, *, once: bool) -> list[str]:
        """Lark rules for calls after the first one's `_before`."""
        separator, begin, end = (control.spelled(marker) for marker in (SEPARATOR, CALL, CALL_END))
        calls = [self._call(tool, f"arguments_{index}", separator) for index, tool in enumerate(tools)]
        between = f'"\\n"? {begin} {self._spelled_before(control)} call {end}'
        more = "" if once else f" ({between})*"
        return [
            f"{rule}: call {end}{more} {control.spelled(CALLS_END)}",
            f"call: {' | '.join(calls)}",
            *argument_rules(tools),
        ]

    def _call(self, tool: Tool, arguments: str, separator: str) -> str:
        if self.fenced:
            before = json.dumps(f"{tool.name}\n{FENCE}\n")
            return f'{before} {arguments} "\\n```"'
        return f"{json.dumps(tool.name)} {separator} {arguments}"

    def template_id(self, call_id: str) -> str:
        """See Dialect. The templates ignore ids."""
        return call_id


DEEPSEEK: Final = DeepSeek()
DEEPSEEK_FENCED: Final = DeepSeek(name="deepseek-fenced", fenced=True)
