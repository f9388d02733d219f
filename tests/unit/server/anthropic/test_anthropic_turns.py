"""Conversations in Anthropic's form as chat templates know them."""

from __future__ import annotations

from typing import Any

import pytest

from foredraft.errors import RequestError
from foredraft.server.anthropic.prompt import as_turns, encode_messages
from foredraft.server.anthropic.schemas import CountTokensRequest
from foredraft.server.anthropic.tools import message_tools
from foredraft.testing import FakeModel, FakeTokenizer


def body(*messages: tuple[str, Any], **fields: Any) -> CountTokensRequest:
    turns = [{"role": role, "content": content} for role, content in messages]
    return CountTokensRequest.model_validate({"model": "m", "messages": turns, **fields})


def use(call_id: str, **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "add", "input": given}


def result(call_id: str, content: Any = "2", **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **fields}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def called(call_id: str, **given: Any) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "add", "arguments": given}}


def test_neighbours_are_one_message() -> None:
    given = body(("user", "a"), ("user", [text("b"), text("c")]), ("assistant", "d"), system="s")
    assert as_turns(given) == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "a\nb\nc"},
        {"role": "assistant", "content": "d"},
    ]


def test_calls_and_results() -> None:
    given = body(
        ("user", "go"),
        ("assistant", [text("wait"), use("x", a=1)]),
        ("assistant", [use("y"), text("now")]),
        ("user", [result("y")]),
        ("user", [result("x", [text("1"), text("2")]), text("so?")]),
        ("assistant", [use("z")]),
        ("user", [result("z", None)]),
    )
    assert as_turns(given) == [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": "wait\nnow", "tool_calls": [called("x", a=1), called("y")]},
        {"role": "tool", "tool_call_id": "y", "content": "2"},
        {"role": "tool", "tool_call_id": "x", "content": "1\n2"},
        {"role": "user", "content": "so?"},
        {"role": "assistant", "content": "", "tool_calls": [called("z")]},
        {"role": "tool", "tool_call_id": "z", "content": ""},
    ]


@pytest.mark.parametrize(
    ("content", "failed", "told"),
    [
        ("no city", True, "Error: no city"),
        ("Error: no city", True, "Error: no city"),
        ("error 3", True, "error 3"),
        (None, True, "Error: "),
        ("no city", False, "no city"),
        ("no city", None, "no city"),
    ],
)
def test_a_failure_is_told_to_the_model(content: str | None, failed: bool | None, told: str) -> None:
    given = body(("user", "go"), ("assistant", [use("x")]), ("user", [result("x", content, is_error=failed)]))
    assert as_turns(given)[-1]["content"] == told


@pytest.mark.parametrize(
    "messages",
    [
        [("user", [result("x")])],
        [("user", "go"), ("assistant", "no"), ("user", [result("x")])],
        [("user", "go"), ("assistant", [use("x")]), ("user", [text("so"), result("x")])],
        [("user", "go"), ("assistant", [use("x")]), ("system", "so"), ("user", [result("x")])],
        [("user", "go"), ("assistant", [use("x")]), ("user", [result("y")])],
    ],
)
def test_a_result_follows_its_call(messages: list[tuple[str, Any]]) -> None:
    with pytest.raises(RequestError, match="the message right before has no tool_use"):
        as_turns(body(*messages))


TOOL = {"name": "add", "input_schema": {"type": "object"}}


@pytest.mark.parametrize("fields", [{}, {"tools": [TOOL]}])
def test_the_beginning_of_an_answer_is_the_prompt_s_end(fields: dict[str, Any]) -> None:
    tokenizer = FakeTokenizer()

    def prompt(*messages: tuple[str, Any]) -> str:
        given = body(*messages, **fields)
        offered = message_tools(tokenizer, given.tools, given.tool_choice)
        info = FakeModel(258, context_length=4096).info
        _, encoded = encode_messages(given, as_turns(given), offered, info)
        return bytes(encoded.tokens).decode()

    asked = prompt(("user", "go"))
    assert prompt(("user", "go"), ("assistant", "well")) == asked + "well"
    assert asked.endswith("user: go\nassistant: ")
    assert ("add" in asked) is bool(fields)
