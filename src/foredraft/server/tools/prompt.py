"""Tools, calls and results as plain text in the Hermes form, for templates without tool support."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from foredraft.server.tools.choice import Tool
from foredraft.server.tools.hermes import CLOSE, OPEN


def tools_prompt(tools: Sequence[Tool]) -> str:
    """The addition to the system prompt that describes the tools and how to call them."""
    described = "\n".join(json.dumps(tool.as_message(), ensure_ascii=False) for tool in tools)
    return (
        "These functions can be called, one JSON schema a line:\n"
        f"<tools>\n{described}\n</tools>\n\n"
        "To call a function, answer with its name and arguments as one JSON object between tags:\n"
        f'{OPEN}\n{{"name": "the function", "arguments": {{"a parameter": "its value"}}}}\n{CLOSE}\n'
        "Repeat this for every further call. The results follow between <tool_response> tags. "
        "Answer in plain words when no function helps."
    )


def call_text(name: str, arguments: Any) -> str:
    """An earlier call, as the model wrote it."""
    body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"{OPEN}\n{body}\n{CLOSE}"


def with_tools(messages: list[dict[str, Any]], tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """The messages for a template that reads the tools from the system message, as JSON text."""
    if not tools:
        return messages
    described = json.dumps([tool.as_message()["function"] for tool in tools], ensure_ascii=False)
    first = messages[0] if messages else {}
    if first.get("role") == "system":
        return [{**first, "tools": described}, *messages[1:]]
    return [{"role": "system", "content": "", "tools": described}, *messages]


def result_text(content: str) -> str:
    """The result of a call."""
    return f"<tool_response>\n{content}\n</tool_response>"
