"""Calls that are cut short or broken: no markup as text, no finish reason that promises a call, and what was
written is taken back as history. In all three APIs, whole and streamed.
"""

from __future__ import annotations

import pytest

from api_cases import (
    ASKED,
    CITY,
    Ask,
    chat,
    chat_folded,
    every_api,
    every_way,
    is_json,
    messages,
    post,
    responses,
)
from http_server import serving
from matrix import matrix

CALL = '<tool_call>\n{"name": "f", "arguments": {"city": "Oslo"}}\n</tool_call>'
BROKEN = '<tool_call>{"name":"f","arguments":{"q":"x",}}</tool_call>'


@matrix(
    ask=[chat, responses, messages],
    stream=[False, True],
    forced=[True, False],
    ids={"stream": ["whole", "streamed"], "forced": ["required", "auto"]},
)
def test_a_call_cut_anywhere_shows_no_markup_and_is_taken_back(ask: Ask, stream: bool, forced: bool) -> None:
    """A token is a byte here: every length from the first byte of the call to all of it."""
    prefix = "<tool_call>\n" if forced else ""
    length = len(CALL) - len(prefix)
    with serving(script=CALL) as running:
        for most in range(1, length + 1):
            said = ask(running, most, [], stream=stream, forced=forced)
            assert (said.text, said.reason) == ("", "length"), most
            for _, arguments in said.calls:
                assert ask is messages or '{"city": "Oslo"}'.startswith(arguments)
            if most % 8 == 0:
                again = ask(running, most, said.back, stream=stream, forced=forced)
                assert again.reason == "length"
        said = ask(running, length + 1, [], stream=stream, forced=forced)
    assert said.calls == [("f", '{"city": "Oslo"}')]
    assert said.reason == "tool_calls"


@every_api
@every_way
@pytest.mark.parametrize(
    ("script", "text", "reason"),
    [
        (BROKEN, "}}", "stop"),
        (f"So: {CALL} and {BROKEN}", "So:  and }}", "stop"),
        ('<tool_call>{"name": "f", "arguments": {"city": "Os', "", "stop"),
        (f"Yes. {CALL}", "Yes. ", "tool_calls"),
        ("No.", "No.", "stop"),
    ],
)
def test_only_whole_calls_end_an_answer_as_calls(
    ask: Ask, stream: bool, script: str, text: str, reason: str
) -> None:
    with serving(script=script) as running:
        said = ask(running, 400, [], stream=stream, forced=False)
        assert (said.text, said.reason) == (text, reason)
        if reason == "tool_calls":
            assert all(is_json(arguments) for _, arguments in said.calls)
        ask(running, 400, said.back, stream=stream, forced=False)


@every_way
def test_a_stop_string_inside_a_forced_call_shows_no_markup(stream: bool) -> None:
    function = {"name": "f", "parameters": CITY}
    body = {
        "messages": [ASKED],
        "tools": [{"type": "function", "function": function}],
        "tool_choice": "required",
        "stop": "name",
        "stream": stream,
    }
    with serving(script=CALL) as running:
        reply = post(running, "/v1/chat/completions", body)
    choice = chat_folded(reply) if stream else reply.json()["choices"][0]
    assert (choice["message"]["content"] or "", choice["finish_reason"]) == ("", "stop")
    assert not choice["message"].get("tool_calls")
