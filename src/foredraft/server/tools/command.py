"""Command R7B and A: `<|START_ACTION|>[{"tool_call_id": "0", "tool_name": …, "parameters": {…}}, …]` and
`<|END_ACTION|>`. Reasoning and text are between markers of their own.
"""

from __future__ import annotations

from typing import Final

from foredraft.server.tools.listed import Listed

COMMAND: Final = Listed(
    name="command",
    opening="<|START_ACTION|>",
    closing="<|END_ACTION|>",
    name_key="tool_name",
    arguments_key="parameters",
    extra=(("tool_call_id", {"type": "string", "pattern": "^[0-9]{1,3}$"}),),
    thinking=("<|START_THINKING|>", "<|END_THINKING|>"),
    saying=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
)
