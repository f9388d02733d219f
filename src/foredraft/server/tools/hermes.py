"""Hermes 2 and 3, Qwen 2.5 and 3: any number of `<tool_call>{"name": …, "arguments": {…}}</tool_call>`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from foredraft.server.tools.choice import Tool, ToolChoice
from foredraft.server.tools.dialect import NO_CONTROL, Calls, ControlTokens, Forced, ToolParser, new_call_id
from foredraft.server.tools.parser import CallParser, Layout
from foredraft.server.tools.readers import ObjectCall
from foredraft.server.tools.schema import call_schema, embedded

OPEN: Final = "<tool_call>"
CLOSE: Final = "</tool_call>"

# The closing tag may be missing (the model stops at the brace), and one pair of tags may hold several calls.
LAYOUT: Final = Layout(
    start="text",
    steps={
        "text": {OPEN: "open"},
        "open": {"{": "call"},
        "after": {CLOSE: "text", OPEN: "open", "{": "call"},
        "broken": {CLOSE: "text", OPEN: "open"},
    },
    readers={"call": ObjectCall},
)


@dataclass(frozen=True, slots=True)
class Hermes:
    """See Dialect."""

    name: str = "hermes"
    markers: tuple[str, ...] = (OPEN, CLOSE)
    one_call_a_message: bool = False
    always_read: bool = False

    def parser(self, tools: Sequence[Tool], new_id: Callable[[], str] = new_call_id) -> ToolParser:
        """See Dialect."""
        return CallParser(LAYOUT, tools, new_id)

    def grammar(
        self, tools: Sequence[Tool], choice: ToolChoice, control: ControlTokens = NO_CONTROL
    ) -> Forced | None:
        """See Dialect. The answer starts inside the first tag."""
        if not choice.forced:
            return None
        schema = embedded(call_schema(choice.callable(tools), arguments="arguments"))
        opening, closing = control.spelled(OPEN), control.spelled(CLOSE)
        more = "" if choice.once else f' ("\\n" {opening} "\\n" call)*'
        source = f'start: call{more}\ncall: body "\\n" {closing}\nbody: %json {schema}\n'
        return Forced("grammar", source, f"{OPEN}\n")

    def calls(self, tools: Sequence[Tool], choice: ToolChoice, control: ControlTokens) -> Calls:
        """See Dialect."""
        body = embedded(call_schema(tools, arguments="arguments"))
        rules = [f"calls: SPACE body SPACE {control.spelled(CLOSE)}", f"body: %json {body}"]
        return Calls(marker=OPEN, rules=rules, once=choice.once)

    def template_id(self, call_id: str) -> str:
        """See Dialect. The templates ignore ids."""
        return call_id


HERMES: Final = Hermes()
