"""Harmony, the format of gpt-oss: an answer's messages are on channels, and messages to a function are calls.

`<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…<|return|>`; a call is
`<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{…}<|call|>`, or has the function before
the channel. The prompt ends with `<|start|>assistant`. The channel `analysis` is reasoning; `final`, and
`commentary` without a recipient, are text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from foredraft.server.tools.choice import Tool, ToolChoice
from foredraft.server.tools.dialect import NO_CONTROL, Calls, ControlTokens, Forced, ToolParser, new_call_id
from foredraft.server.tools.headed import NAME, SPACE, Head, HeadedCall, either, literal, optional, sequence
from foredraft.server.tools.parser import CallParser, Layout
from foredraft.server.tools.schema import argument_rules

START: Final = "<|start|>"
END: Final = "<|end|>"
MESSAGE: Final = "<|message|>"
CHANNEL: Final = "<|channel|>"
CONSTRAIN: Final = "<|constrain|>"
CALL: Final = "<|call|>"
RETURN: Final = "<|return|>"
TO: Final = "to=functions."

_RECIPIENT: Final = optional(SPACE, literal(TO), NAME)
_HEAD: Final = Head(
    sequence(
        _RECIPIENT, SPACE, literal(CHANNEL), either(literal("commentary"), literal("analysis")), _RECIPIENT,
        SPACE, optional(literal(CONSTRAIN)), optional(either(literal("json"), literal("code"))), SPACE,
        literal(MESSAGE), SPACE,
    )
)  # fmt: skip

_MESSAGES: Final = {
    f"{CHANNEL}analysis{MESSAGE}": "analysis",
    f"{CHANNEL}commentary{MESSAGE}": "text",
    f"{CHANNEL}final{MESSAGE}": "text",
    f"{CHANNEL}final {CONSTRAIN}json{MESSAGE}": "text",
    f"{CHANNEL}final json{MESSAGE}": "text",
}
_ENDS: Final = {END: "between", CALL: "between", RETURN: "between", START: "role", **_MESSAGES}
_ENDS[f"{CHANNEL}commentary {TO}"] = "call"

_INSIDE: Final = (START, END, MESSAGE, CHANNEL, CONSTRAIN)

LAYOUT: Final = Layout(
    start="begin",
    steps={
        "begin": {**_ENDS, MESSAGE: "text", "": "call"},
        "role": {"assistant": "begin", **_MESSAGES, MESSAGE: "text", "": "call"},
        "between": _ENDS,
        "text": _ENDS,
        "analysis": _ENDS,
        "after": _ENDS,
        "broken": _ENDS,
    },
    readers={"call": partial(HeadedCall, head=_HEAD)},
    reasoning=frozenset({"analysis"}),
    quiet=frozenset({"begin", "role", "between", "after"}),
)


@dataclass(frozen=True, slots=True)
class Harmony:
    """See Dialect. The templates write one call a message, and `<|call|>` ends an answer."""

    name: str = "harmony"
    markers: tuple[str, ...] = (START, END, MESSAGE, CHANNEL, CONSTRAIN, CALL, RETURN)
    one_call_a_message: bool = True
    always_read: bool = True

    def parser(self, tools: Sequence[Tool], new_id: Callable[[], str] = new_call_id) -> ToolParser:
        """See Dialect."""
        return CallParser(LAYOUT, tools, new_id)

    def grammar(
        self, tools: Sequence[Tool], choice: ToolChoice, control: ControlTokens = NO_CONTROL
    ) -> Forced | None:
        """See Dialect. One call, whose head starts in the prompt."""
        if not choice.forced:
            return None
        rules = _rules("start", choice.callable(tools), control)
        return Forced("grammar", "\n".join([*rules, ""]), f"{CHANNEL}commentary {TO}")

    def calls(
        self,
        tools: Sequence[Tool],
        choice: ToolChoice,  # noqa: ARG002
        control: ControlTokens,
    ) -> Calls:
        """See Dialect. One call: it ends the answer."""
        return Calls(marker=TO, rules=_rules("calls", tools, control), once=True, layout=_INSIDE)

    def template_id(self, call_id: str) -> str:
        """See Dialect. The templates ignore ids."""
        return call_id


def _rules(rule: str, tools: Sequence[Tool], control: ControlTokens) -> list[str]:
    """Lark rules for one call after `TO`."""
    channel, constrain, message = (control.spelled(marker) for marker in (CHANNEL, CONSTRAIN, MESSAGE))
    middle = f'(" "? {channel} "commentary")? (" "? {constrain} "json" | " json" | " code")? {message}'
    calls = [f'"{tool.name}" {middle} arguments_{index}' for index, tool in enumerate(tools)]
    return [f"{rule}: {' | '.join(calls)}", *argument_rules(tools)]


HARMONY: Final = Harmony()
