"""Gemma 4 and FunctionGemma: `call:NAME{key:value,…}` between markers.

Texts are quoted by `<|"|>` or `<escape>`. Keys, numbers, `true` and `false` are unquoted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from foredraft.server.tools.choice import Tool, ToolChoice
from foredraft.server.tools.dialect import NO_CONTROL, Calls, ControlTokens, Forced, ToolParser, new_call_id
from foredraft.server.tools.headed import NAME, SPACE, Head, literal, sequence
from foredraft.server.tools.literals import MembersCall, Notation
from foredraft.server.tools.notation import NotationRules
from foredraft.server.tools.parser import CallParser, Layout

_HEAD: Final = Head(sequence(literal("call:"), NAME, SPACE))


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma:
    """See Dialect. `quote` encloses texts; `channel` encloses reasoning, after its name."""

    name: str
    opening: str
    closing: str
    quote: str
    channel: tuple[str, str] | None = None
    one_call_a_message: bool = False

    @property
    def markers(self) -> tuple[str, ...]:
        """See Dialect."""
        return (self.opening, self.closing, self.quote, *(self.channel or ()))

    @property
    def always_read(self) -> bool:
        """See Dialect."""
        return self.channel is not None

    def parser(self, tools: Sequence[Tool], new_id: Callable[[], str] = new_call_id) -> ToolParser:
        """See Dialect."""
        notation = Notation(opening="{", separator=":", quotes=(self.quote, '"'), bare=True)
        begin, end = self.channel or ("", "")
        opens = {self.opening: "open"} | ({f"{begin}thought": "thinking"} if begin else {})
        layout = Layout(
            start="text",
            steps={
                "text": opens,
                "thinking": {**opens, end: "text"},
                "broken": {self.closing: "text", **opens},
                "open": {"": "call"},
                "after": {self.closing: "text", **opens},
            },
            readers={"call": partial(MembersCall, head=_HEAD, notation=notation)},
            reasoning=frozenset({"thinking"}),
        )
        return CallParser(layout, tools, new_id)

    def grammar(
        self, tools: Sequence[Tool], choice: ToolChoice, control: ControlTokens = NO_CONTROL
    ) -> Forced | None:
        """See Dialect. The answer starts after the first marker."""
        if not choice.forced:
            return None
        rules = NotationRules(self.quote, control)
        calls = self._calls(choice.callable(tools), rules)
        opening, closing = control.spelled(self.opening), control.spelled(self.closing)
        more = "" if choice.once else f" ({opening} call {closing})*"
        source = "\n".join([f"start: call {closing}{more}", f"call: {calls}", *rules.lines, ""])
        return Forced("grammar", source, self.opening)

    def calls(self, tools: Sequence[Tool], choice: ToolChoice, control: ControlTokens) -> Calls:
        """See Dialect."""
        rules = NotationRules(self.quote, control)
        calls = self._calls(tools, rules)
        lines = [f"calls: ({calls}) {control.spelled(self.closing)}", *rules.lines]
        return Calls(marker=self.opening, rules=lines, once=choice.once, layout=self.channel or ())

    def _calls(self, tools: Sequence[Tool], rules: NotationRules) -> str:
        return " | ".join(f"{json.dumps(f'call:{tool.name}')} {rules.arguments(tool)}" for tool in tools)

    def template_id(self, call_id: str) -> str:
        """See Dialect. The templates ignore ids."""
        return call_id


GEMMA: Final = Gemma(
    name="gemma",
    opening="<|tool_call>",
    closing="<tool_call|>",
    quote='<|"|>',
    channel=("<|channel>", "<channel|>"),
)
FUNCTION_GEMMA: Final = Gemma(
    name="function-gemma",
    opening="<start_function_call>",
    closing="<end_function_call>",
    quote="<escape>",
)
