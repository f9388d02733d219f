"""Llama 3.1 and 3.2: a bare JSON object `{"name": …, "parameters": {…}}` as the answer, several apart by `;`.

The object stands at the very start of the answer or, anywhere, after `<|python_tag|>`. Code for the built-in
interpreter, which the same tag announces, is text here, except where a strict function is offered: then what
follows the tag is a call, and so is an answer that begins like one, with an object whose first key is "name".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from foretoken.server.tools.choice import Tool, ToolChoice
from foretoken.server.tools.dialect import NO_CONTROL, ControlTokens, Forced, ToolParser, new_call_id
from foretoken.server.tools.offered import json_or_calls, offered_tools, text_with_calls
from foretoken.server.tools.parser import CallParser, Layout
from foretoken.server.tools.readers import ObjectCall
from foretoken.server.tools.schema import call_schema, definitions, embedded

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


# Text that the parser cannot take for a call: as the first key of an object, none that a call may begin with,
# and none with an escape in it, which may stand for one of them.
_NO_CALL: Final = r"""/(?s:.*)/ & ~/\s*\{\s*"((name|arguments|parameters|id|type)"|[^"\\]*\\)(?s:.*)/"""


@dataclass(frozen=True, slots=True)
class Llama3:
    """See Dialect."""

    name: str = "llama3"
    markers: tuple[str, ...] = (PYTHON_TAG,)
    one_call_a_message: bool = True

    def parser(self, names: Collection[str], new_id: Callable[[], str] = new_call_id) -> ToolParser:
        """See Dialect."""
        return CallParser(LAYOUT, names, new_id)

    def grammar(
        self,
        tools: Sequence[Tool],
        choice: ToolChoice,
        control: ControlTokens = NO_CONTROL,  # noqa: ARG002
    ) -> Forced | None:
        """See Dialect. One call: the models were trained on one a message, and their templates say so."""
        if not choice.forced:
            return None
        return Forced("json_schema", json.dumps(call_schema(choice.callable(tools), arguments="parameters")))

    def offered(
        self,
        tools: Sequence[Tool],
        choice: ToolChoice,
        answer: Mapping[str, Any] | None = None,
        control: ControlTokens = NO_CONTROL,
    ) -> str:
        """See Dialect. One call, as where it is forced."""
        offered = offered_tools(tools, choice)
        body = embedded(call_schema(offered, arguments="parameters"))
        rules = ["calls: SPACE body", f"body: %json {body}"]
        if answer is not None:
            return json_or_calls(answer, PYTHON_TAG, rules, once=True, control=control, bare=["body"])
        begun = r'begun[lazy]: /\s*\{\s*"name"\s*:/'
        named = [
            rf'SPACE "\"{tool.name}\"" SPACE "," SPACE "\"parameters\"" SPACE ":" SPACE arguments_{index}'
            for index, tool in enumerate(offered)
        ]
        rules += [begun, f'rest: ({" | ".join(named)}) SPACE "}}"']
        rules += [f"arguments_{index}: %json {_arguments(tool)}" for index, tool in enumerate(offered)]
        bare = ["begun rest"]
        return text_with_calls(PYTHON_TAG, rules, once=True, control=control, text=_NO_CALL, bare=bare)

    def template_id(self, call_id: str) -> str:
        """See Dialect. The templates do not look at ids."""
        return call_id


def _arguments(tool: Tool) -> str:
    return embedded({"$ref": f"#/$defs/{tool.name}", "$defs": definitions([tool])})


LLAMA3: Final = Llama3()
