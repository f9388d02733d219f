"""The Hermes format, as Hermes and Qwen models write it."""

from __future__ import annotations

import pytest

from foredraft.server.tools.hermes import HERMES
from tool_cases import called, read

ADD = '{"name": "add", "arguments": {"a": 1}}'
NOW = '{"name": "now", "arguments": {}}'


@pytest.mark.parametrize(
    ("text", "shown", "calls"),
    [
        (f"<tool_call>\n{ADD}\n</tool_call>", "", [("add", '{"a": 1}')]),
        (f"\n\n<tool_call>\n{ADD}\n</tool_call>\n", "", [("add", '{"a": 1}')]),
        (
            f"Let me see.\n<tool_call>\n{ADD}\n</tool_call>\n<tool_call>\n{NOW}\n</tool_call>",
            "Let me see.\n",
            [("add", '{"a": 1}'), ("now", "{}")],
        ),
        (f"<tool_call>{ADD}</tool_call> Done.", " Done.", [("add", '{"a": 1}')]),
        (f"<tool_call>{ADD}", "", [("add", '{"a": 1}')]),
        (f"<tool_call>{ADD}</tool", "", [("add", '{"a": 1}')]),
        (f"<tool_call>{ADD}\n{NOW}</tool_call>", "", [("add", '{"a": 1}'), ("now", "{}")]),
        (f"<tool_call>{ADD}<tool_call>{NOW}", "", [("add", '{"a": 1}'), ("now", "{}")]),
        (f"<tool_call><tool_call>{ADD}</tool_call>", "<tool_call>", [("add", '{"a": 1}')]),
        (f"<tool_call>{ADD} or not", " or not", [("add", '{"a": 1}')]),
        (
            f"<tool_call>oops</tool_call> then <tool_call>{NOW}</tool_call>",
            "<tool_call>oops</tool_call> then ",
            [("now", "{}")],
        ),
        (
            '<tool_call>{"name": "add", "arguments": {"a": "</tool_call>"}}</tool_call>',
            "",
            [("add", '{"a": "</tool_call>"}')],
        ),
        (
            '<tool_call>{"arguments": {"a": 1}, "name": "add"}</tool_call>',
            "",
            [("add", '{"a": 1}')],
        ),
        (
            '<tool_call>{"id": 3, "type": "function", "name": "add", "arguments": {}, "x": [1]}</tool_call>',
            "",
            [("add", "{}")],
        ),
        (ADD, ADD, []),
        ("<tool_call>", "<tool_call>", []),
        ("a <tool_ca", "a <tool_ca", []),
    ],
)
def test_reads(text: str, shown: str, calls: list[tuple[str, str]]) -> None:
    answer = read(HERMES, text)
    assert called(answer) == calls
    assert answer.text == shown
