"""Llama 3.1 and 3.2: a bare JSON object `{"name": …, "parameters": {…}}` as the answer, several apart by `;`.

The object stands at the very start of the answer or, anywhere, after `<|python_tag|>`. Code for the built-in
interpreter, which the same tag announces, is text here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from foretoken.server.tools.choice import Tool, ToolChoice
from foretoken.server.tools.dialect import Forced, ToolParser, new_call_id
from foretoken.server.tools.parser import CallParser, Layout
from foretoken.server.tools.readers import ObjectCall
from foretoken.server.tools.schema import call_schema

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


@dataclass(frozen=True, slots=True)
class Llama3:
    """See Dialect."""

    name: str = "llama3"
    markers: tuple[str, ...] = (PYTHON_TAG,)
    one_call_a_message: bool = True

    def parser(self, names: Collection[str], new_id: Callable[[], str] = new_call_id) -> ToolParser:
        """See Dialect."""
        return CallParser(LAYOUT, names, new_id)

    def grammar(self, tools: Sequence[Tool], choice: ToolChoice) -> Forced | None:
        """See Dialect. One call: the models were trained on one a message, and their templates say so."""
        if not choice.forced:
            return None
        return Forced("json_schema", json.dumps(call_schema(choice.callable(tools), arguments="parameters")))

    def template_id(self, call_id: str) -> str:
        """See Dialect. The templates do not look at ids."""
        return call_id


LLAMA3: Final = Llama3()
