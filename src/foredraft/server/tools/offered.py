"""Grammars of answers in which the model may call: text with calls in it, or JSON in place of text.

In text a call starts where its marker is complete. The rule that ends with the marker is lazy: llguidance
then ends the text at the first marker, and a call must follow. If the vocabulary has the marker as a control
token, the model can also write it as text; the parser reads both, so both lead to a call.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from foredraft.server.tools.choice import Tool, ToolChoice
from foredraft.server.tools.dialect import NO_CONTROL, Calls, ControlTokens, Dialect
from foredraft.server.tools.schema import embedded

SPACE: Final = r"SPACE: /[ \t\r\n]{0,4}/"
"""White space around calls: models write a line break, a space, or nothing."""


def offered_grammar(
    dialect: Dialect,
    tools: Sequence[Tool],
    choice: ToolChoice,
    answer: Mapping[str, Any] | None = None,
    control: ControlTokens = NO_CONTROL,
) -> str:
    """A Lark grammar of answers in which the model may call but need not: arguments of strict functions
    follow their schemas, those of others are any JSON object. Everything else is any text, or with `answer`
    JSON of this schema.
    """
    free = {"type": "object"}
    callable_ = [tool if tool.strict else replace(tool, parameters=free) for tool in choice.callable(tools)]
    calls = dialect.calls(callable_, choice, control)
    return _text_with(calls, control) if answer is None else _json_or(calls, answer, control)


def _text_with(calls: Calls, control: ControlTokens) -> str:
    """Text with calls after a marker."""
    opened = ["opened calls", *calls.bare_in_text]
    if calls.marker in control.markers:
        opened.append(f"TEXT {control.spelled(calls.marker)} calls")
    beside = [*control.others, *(control.markers[name] for name in calls.layout if name in control.markers)]
    others = [f"TEXT <[{_ranges(beside)}]>"] if beside else []
    if calls.once:
        before = f"({' | '.join(others)})* " if others else ""
        start = f"{before}(TEXT | {' | '.join(opened)})"
    else:
        start = f"({' | '.join(opened + others)})* TEXT"
    marked = f"opened[lazy]: TEXT {json.dumps(calls.marker)}"
    head = [f"start: {start}", marked, f"TEXT: {calls.text}", SPACE]
    return "\n".join([*head, *calls.rules, *calls.text_rules, ""])


def _json_or(calls: Calls, answer: Mapping[str, Any], control: ControlTokens) -> str:
    """JSON of the schema `answer`, or only calls."""
    call = f"{control.spelled(calls.marker)} calls"
    more = "" if calls.once else f" (SPACE {call})*"
    start = " | ".join(["answer", f"{call}{more}", *calls.bare])
    return "\n".join([f"start: {start}", f"answer: %json {embedded(answer)}", SPACE, *calls.rules, ""])


def _ranges(tokens: Sequence[int]) -> str:
    """Token ids in llguidance's list form, with ranges as first-last."""
    runs: list[list[int]] = []
    for token in sorted(tokens):
        if runs and token == runs[-1][1] + 1:
            runs[-1][1] = token
        else:
            runs.append([token, token])
    return ",".join(f"{first}-{last}" for first, last in runs)
