"""Mistral's two formats, and the ids its templates take."""

from __future__ import annotations

import pytest

from foredraft.server.tools.mistral import MISTRAL
from tool_cases import called, read

ADD = '{"name": "add", "arguments": {"a": 1}, "id": "a1B2c3D4e"}'
NOW = '{"name": "now", "arguments": {}}'


@pytest.mark.parametrize(
    ("text", "shown", "calls"),
    [
        (f"[TOOL_CALLS][{ADD}]", "", [("add", '{"a": 1}')]),
        (f"[TOOL_CALLS] [{ADD}, {NOW}]", "", [("add", '{"a": 1}'), ("now", "{}")]),
        (f"Wait.[TOOL_CALLS][{ADD}] Right.", "Wait. Right.", [("add", '{"a": 1}')]),
        (f"[TOOL_CALLS]{ADD}", "", [("add", '{"a": 1}')]),
        (f"[TOOL_CALLS][{ADD}", "", [("add", '{"a": 1}')]),
        ('[TOOL_CALLS]add[ARGS]{"a": 1}', "", [("add", '{"a": 1}')]),
        ('[TOOL_CALLS]add[CALL_ID]a1B2c3D4e[ARGS]{"a": 1}', "", [("add", '{"a": 1}')]),
        ('[TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]now[ARGS] {}', "", [("add", '{"a": 1}'), ("now", "{}")]),
        ('[TOOL_CALLS]add{"a": 1}', "", [("add", '{"a": 1}')]),
        ("[TOOL_CALLS]other[ARGS]{}", "[TOOL_CALLS]other[ARGS]{}", []),
        ("[TOOL_CALLS]add[ARGS]x", "[TOOL_CALLS]add[ARGS]x", []),
        ("[TOOL_CALLS]add[ARG{}", "[TOOL_CALLS]add[ARG{}", []),
        ("[TOOL_CALLS] is a marker", "[TOOL_CALLS] is a marker", []),
        ("[TOOL_CALLS]" + "a" * 65 + "{}", "[TOOL_CALLS]" + "a" * 65 + "{}", []),
        ("[TOOL_CALLS][]", "[TOOL_CALLS][]", []),
        (f"[TOOL_CALLS][{ADD}, or not]", ", or not]", [("add", '{"a": 1}')]),
        ("a[0] = [1]", "a[0] = [1]", []),
    ],
)
def test_reads(text: str, shown: str, calls: list[tuple[str, str]]) -> None:
    answer = read(MISTRAL, text)
    assert called(answer) == calls
    assert answer.text == shown


def test_template_ids_are_nine_letters_and_digits() -> None:
    ids = [MISTRAL.template_id(f"call_{number:024x}") for number in range(100)]
    assert all(len(value) == 9 and value.isalnum() for value in ids)
    assert len(set(ids)) == 100
    assert MISTRAL.template_id("call_x") == MISTRAL.template_id("call_x")
    assert MISTRAL.template_id("a1B2c3D4e") == "a1B2c3D4e"
