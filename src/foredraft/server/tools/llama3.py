"""Llama 3.1 and 3.2: a bare JSON object `{"name": …, "parameters": {…}}` as the answer, several separated by
`;`.

The object is at the very start of the answer, or anywhere after `<|python_tag|>`. Code for the built-in
interpreter, which has the same tag, is treated as text, unless a strict function is offered: then a call must
follow the tag, and an answer that starts with an object whose first key is "name" is a call, too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from foredraft.server.tools.choice import Tool, ToolChoice
from foredraft.server.tools.dialect import NO_CONTROL, Calls, ControlTokens, Forced, ToolParser, new_call_id
from foredraft.server.tools.parser import CallParser, Layout
from foredraft.server.tools.readers import ObjectCall
from foredraft.server.tools.schema import argument_rules, call_schema, embedded

PYTHON_TAG: Final = "<|python_tag|>"

LAYOUT: Final = Layout(
    start="start",
    steps={
        "start": {PYTHON_TAG: "open", "{": "call"},
        "text": {PYTHON_TAG: "open"},
        "open": {"{": "call"},
        "after": {";": "open", PYTHON_TAG: "open", "{": "call"},
    },
    readers={"call": ObjectCall},
)


# Text that the parser cannot mistake for a call: not an object whose first key may start a call, or contains
# an escape, which could stand for such a key.
_NO_CALL: Final = r"""/(?s:.*)/ & ~/\s*\{\s*"((name|arguments|parameters|id|type)"|[^"\\]*\\)(?s:.*)/"""


@dataclass(frozen=True, slots=True)
class Llama3:
    """See Dialect."""

    name: str = "llama3"
    markers: tuple[str, ...] = (PYTHON_TAG,)
    one_call_a_message: bool = True
    always_read: bool = False

    def parser(self, tools: Sequence[Tool], new_id: Callable[[], str] = new_call_id) -> ToolParser:
        """See Dialect."""
        return CallParser(LAYOUT, tools, new_id)

    def grammar(
        self,
        tools: Sequence[Tool],
        choice: ToolChoice,
        control: ControlTokens = NO_CONTROL,  # noqa: ARG002
    ) -> Forced | None:
        """See Dialect. One call: the models were trained on one per message, and their templates say so."""
        if not choice.forced:
            return None
        return Forced("json_schema", json.dumps(call_schema(choice.callable(tools), arguments="parameters")))

    def calls(
        self,
        tools: Sequence[Tool],
        choice: ToolChoice,  # noqa: ARG002
        control: ControlTokens,  # noqa: ARG002
    ) -> Calls:
        """See Dialect. One call, as for forced calls."""
        body = embedded(call_schema(tools, arguments="parameters"))
        begun = r'begun[lazy]: /\s*\{\s*"name"\s*:/'
        named = [
            rf'SPACE "\"{tool.name}\"" SPACE "," SPACE "\"parameters\"" SPACE ":" SPACE arguments_{index}'
            for index, tool in enumerate(tools)
        ]
        rest = f'rest: ({" | ".join(named)}) SPACE "}}"'
        return Calls(
            marker=PYTHON_TAG,
            rules=["calls: SPACE body", f"body: %json {body}"],
            once=True,
            bare=["body"],
            bare_in_text=["begun rest"],
            text_rules=[begun, rest, *argument_rules(tools)],
            text=_NO_CALL,
        )

    def template_id(self, call_id: str) -> str:
        """See Dialect. The templates ignore ids."""
        return call_id


LLAMA3: Final = Llama3()
