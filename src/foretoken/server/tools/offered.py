"""Grammars of answers in which the model may call: text with calls in it, or JSON in place of text.

In text a call begins where its marker is complete. The rule that ends in the marker is lazy: llguidance then
leaves the text at the first marker, and what follows has to be a call. A vocabulary that has the marker as a
control token can write it as text too, and the parser reads both, so both lead to a call.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from foretoken.server.tools.choice import Tool, ToolChoice
from foretoken.server.tools.dialect import ControlTokens
from foretoken.server.tools.schema import embedded

ANY_TEXT: Final = "/(?s:.*)/"
SPACE: Final = r"SPACE: /[ \t\r\n]{0,4}/"
"""What may stand around calls: models write a line break, a space, or nothing."""


def offered_tools(tools: Sequence[Tool], choice: ToolChoice) -> list[Tool]:
    """The functions that may be called; the arguments of one that is not strict are any JSON object."""
    free = {"type": "object"}
    return [tool if tool.strict else replace(tool, parameters=free) for tool in choice.callable(tools)]


def text_with_calls(
    marker: str,
    rules: Sequence[str],
    *,
    once: bool,
    control: ControlTokens,
    text: str = ANY_TEXT,
    bare: Sequence[str] = (),
) -> str:
    """Any text, with calls after a marker. `rules` say what `calls` are.

    `text`: the terminal for text outside calls; `bare`: rules for calls that begin without a marker.
    """
    opened = ["opened calls", *bare]
    if marker in control.markers:
        opened.append(f"TEXT {control.spelled(marker)} calls")
    others = [f"TEXT <[{_ranges(control.others)}]>"] if control.others else []
    if once:
        before = f"({' | '.join(others)})* " if others else ""
        start = f"{before}(TEXT | {' | '.join(opened)})"
    else:
        start = f"({' | '.join(opened + others)})* TEXT"
    head = [f"start: {start}", f"opened[lazy]: TEXT {json.dumps(marker)}", f"TEXT: {text}", SPACE]
    return "\n".join([*head, *rules, ""])


def json_or_calls(
    answer: Mapping[str, Any],
    marker: str,
    rules: Sequence[str],
    *,
    once: bool,
    control: ControlTokens,
    bare: Sequence[str] = (),
) -> str:
    """JSON of the schema `answer`, or calls and nothing else."""
    call = f"{control.spelled(marker)} calls"
    more = "" if once else f" (SPACE {call})*"
    start = " | ".join(["answer", f"{call}{more}", *bare])
    return "\n".join([f"start: {start}", f"answer: %json {embedded(answer)}", SPACE, *rules, ""])


def _ranges(tokens: Sequence[int]) -> str:
    """Token ids as llguidance lists them: runs as first-last."""
    runs: list[list[int]] = []
    for token in sorted(tokens):
        if runs and token == runs[-1][1] + 1:
            runs[-1][1] = token
        else:
            runs.append([token, token])
    return ",".join(f"{first}-{last}" for first, last in runs)
