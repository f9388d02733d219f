"""Llama 3's bare JSON and its python tag."""

from __future__ import annotations

import pytest

from foredraft.server.tools.deltas import TextDelta
from foredraft.server.tools.llama3 import LLAMA3
from tool_cases import called, read, tools_named

ADD = '{"name": "add", "parameters": {"a": 1}}'
NOW = '{"name": "now", "parameters": {}}'


@pytest.mark.parametrize(
    ("text", "shown", "calls"),
    [
        (ADD, "", [("add", '{"a": 1}')]),
        (f"\n\n{ADD}", "", [("add", '{"a": 1}')]),
        (f"<|python_tag|>{ADD}", "", [("add", '{"a": 1}')]),
        (f"{ADD}; {NOW}", "", [("add", '{"a": 1}'), ("now", "{}")]),
        (f"<|python_tag|>{ADD};<|python_tag|>{NOW}", ";", [("add", '{"a": 1}'), ("now", "{}")]),
        (f"<|python_tag|>{ADD}\n<|python_tag|>{NOW}", "", [("add", '{"a": 1}'), ("now", "{}")]),
        (f"I will.\n<|python_tag|>{ADD}", "I will.\n", [("add", '{"a": 1}')]),
        (f"{ADD} done", " done", [("add", '{"a": 1}')]),
        (f"I say {ADD}", f"I say {ADD}", []),
        ('<|python_tag|>print("hi")', '<|python_tag|>print("hi")', []),
        ('{"city": "Paris"}', '{"city": "Paris"}', []),
        ('{"type": "function", "name": "add", "parameters": {"a": 2}}', "", [("add", '{"a": 2}')]),
    ],
)
def test_reads(text: str, shown: str, calls: list[tuple[str, str]]) -> None:
    answer = read(LLAMA3, text)
    assert called(answer) == calls
    assert answer.text == shown


def test_json_that_is_no_call_streams_from_its_first_key() -> None:
    parser = LLAMA3.parser(tools_named())
    assert parser.feed('{"city": ') == [TextDelta('{"city": ')]
    assert parser.feed('"Par') == [TextDelta('"Par')]
