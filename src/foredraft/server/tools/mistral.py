"""Mistral: `[TOOL_CALLS][{"name": …, "arguments": {…}}, …]`, and since 2025 `[TOOL_CALLS]name[ARGS]{…}`.

Both forms are parsed with any template; the template determines the form of forced calls.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from foredraft.server.tools.choice import Tool, ToolChoice
from foredraft.server.tools.dialect import NO_CONTROL, Calls, ControlTokens, Forced, ToolParser, new_call_id
from foredraft.server.tools.headed import NAME, SPACE, Head, HeadedCall, Part, literal, optional, sequence
from foredraft.server.tools.parser import CallParser, Layout
from foredraft.server.tools.readers import ObjectCall
from foredraft.server.tools.schema import argument_rules, arguments_schema, call_schema, embedded

TOOL_CALLS: Final = "[TOOL_CALLS]"
ARGS: Final = "[ARGS]"
CALL_ID: Final = "[CALL_ID]"

# In some vocabularies `[ARGS]` is a control token.
_HEAD: Final = Head(
    sequence(
        NAME,
        optional(literal(CALL_ID), Part("[a-zA-Z0-9_-]{0,64}", "[a-zA-Z0-9_-]{0,64}")),
        optional(literal(ARGS)),
        SPACE,
    )
)

LAYOUT: Final = Layout(
    start="text",
    steps={
        "text": {TOOL_CALLS: "open"},
        "open": {"[": "item", "{": "call", "": "named"},
        "item": {"{": "call"},
        "after": {",": "item", "]": "text", TOOL_CALLS: "open"},
    },
    readers={"call": ObjectCall, "named": partial(HeadedCall, head=_HEAD)},
)

_ID: Final = re.compile(r"[a-zA-Z0-9]{9}")


@dataclass(frozen=True, slots=True)
class Mistral:
    """See Dialect. `named`: the newer form, with the function's name before `[ARGS]`."""

    name: str = "mistral"
    named: bool = False
    markers: tuple[str, ...] = (TOOL_CALLS, ARGS, CALL_ID)
    one_call_a_message: bool = False
    always_read: bool = False

    def parser(self, tools: Sequence[Tool], new_id: Callable[[], str] = new_call_id) -> ToolParser:
        """See Dialect."""
        return CallParser(LAYOUT, tools, new_id)

    def grammar(
        self, tools: Sequence[Tool], choice: ToolChoice, control: ControlTokens = NO_CONTROL
    ) -> Forced | None:
        """See Dialect. The fixed part of the call goes into the prefix, where markers are special tokens."""
        if not choice.forced:
            return None
        offered = choice.callable(tools)
        if self.named:
            return _named_calls(offered, control, once=choice.once)
        return Forced("json_schema", json.dumps(_array(offered, once=choice.once)), TOOL_CALLS)

    def calls(self, tools: Sequence[Tool], choice: ToolChoice, control: ControlTokens) -> Calls:
        """See Dialect."""
        if self.named:
            rules = _named_rules("calls", tools, control)
        else:
            rules = ["calls: SPACE array", f"array: %json {embedded(_array(tools, once=choice.once))}"]
        return Calls(marker=TOOL_CALLS, rules=rules, once=choice.once)

    def template_id(self, call_id: str) -> str:
        """See Dialect. The templates require exactly nine letters and digits."""
        if _ID.fullmatch(call_id):
            return call_id
        return hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:9]


def _array(tools: Sequence[Tool], *, once: bool) -> dict[str, Any]:
    call = call_schema(tools, arguments="arguments")
    shared = call.pop("$defs")
    schema: dict[str, Any] = {"type": "array", "items": call, "minItems": 1, "$defs": shared}
    return {**schema, "maxItems": 1} if once else schema


def _named_calls(tools: Sequence[Tool], control: ControlTokens, *, once: bool) -> Forced:
    if once and len(tools) == 1:
        return Forced(
            "json_schema", json.dumps(arguments_schema(tools[0])), f"{TOOL_CALLS}{tools[0].name}{ARGS}"
        )
    more = "" if once else f" ({control.spelled(TOOL_CALLS)} call)*"
    source = "\n".join([f"start: call{more}", *_named_rules("call", tools, control), ""])
    return Forced("grammar", source, TOOL_CALLS)


def _named_rules(rule: str, tools: Sequence[Tool], control: ControlTokens) -> list[str]:
    """Lark rules for one call of any of the tools."""
    calls = [f'"{tool.name}" {control.spelled(ARGS)} arguments_{index}' for index, tool in enumerate(tools)]
    return [f"{rule}: {' | '.join(calls)}", *argument_rules(tools)]


MISTRAL: Final = Mistral()
MISTRAL_NAMED: Final = Mistral(named=True)
