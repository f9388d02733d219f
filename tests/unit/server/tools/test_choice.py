"""What a client may ask for, and what it is told otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from foredraft.errors import RequestError
from foredraft.server.tools.choice import (
    MAX_SCHEMA_DEPTH,
    MAX_TOOLS,
    Tool,
    ToolChoice,
    check_choice,
    check_tools,
)

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def function(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **fields}}


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def test_tools_are_read() -> None:
    tools = check_tools([function(description="d", parameters=SCHEMA, strict=True), function(name="g-1_B")])
    assert tools == (
        Tool("f", "d", SCHEMA, strict=True),
        Tool("g-1_B", "", {"type": "object", "properties": {}}),
    )


@pytest.mark.parametrize("empty", [None, [], ()])
def test_no_tools(empty: object) -> None:
    assert check_tools(empty) == ()


def test_null_fields_are_left_out_fields() -> None:
    assert check_tools([function(description=None, parameters=None, strict=None)]) == (Tool("f"),)


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        ({"type": "function"}, "'tools' is not a list"),
        ("f", "'tools' is not a list"),
        (["f"], r"tools\[0\] is not an object"),
        ([{"type": "web_search"}], r"tools\[0\]\.type is 'web_search'"),
        ([{"type": "function"}], r"tools\[0\]\.function is missing"),
        ([{"type": "function", "function": {}}], r"tools\[0\]\.function\.name is None"),
        ([function(name="bad name")], r"name is 'bad name'"),
        ([function(name="")], r"name is ''"),
        ([function(name="é")], r"name is 'é'"),
        ([function(name="f\n")], r"name is 'f\\n'"),
        ([function(name="a" * 65)], r"name is 'a{56}…"),
        ([function(), function()], r"tools\[1\].*two functions are named 'f'"),
        ([function(parameters=[])], r"parameters is not a JSON schema of type object"),
        ([function(parameters={})], r"parameters is not a JSON schema of type object"),
        ([function(parameters={"type": "string"})], r"parameters is not a JSON schema of type object"),
        ([function(parameters={"type": "object", "properties": []})], r"properties is not an object"),
        ([function(parameters=nested(MAX_SCHEMA_DEPTH))], r"levels deep"),
        ([function(parameters=nested(20_000))], r"levels deep"),
        ([function(description=1)], r"description is not text"),
        ([function(strict="yes")], r"strict is neither"),
        ([function(name=f"f{index}") for index in range(MAX_TOOLS + 1)], "at most 128"),
    ],
)
def test_wrong_tools_are_named(tools: object, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        check_tools(tools)


def test_real_nesting_is_allowed() -> None:
    assert check_tools([function(parameters=nested(20))])[0].parameters == nested(20)


TOOLS = (Tool("f"), Tool("g"))


@pytest.mark.parametrize(
    ("choice", "tools", "expected"),
    [
        (None, TOOLS, ToolChoice("auto")),
        (None, (), ToolChoice("none")),
        ("auto", TOOLS, ToolChoice("auto")),
        ("auto", (), ToolChoice("none")),
        ("none", TOOLS, ToolChoice("none")),
        ("none", (), ToolChoice("none")),
        ("required", TOOLS, ToolChoice("required")),
        ({"type": "function", "function": {"name": "g"}}, TOOLS, ToolChoice("function", "g")),
    ],
)
def test_choices(choice: object, tools: tuple[Tool, ...], expected: ToolChoice) -> None:
    assert check_choice(choice, tools) == expected
    assert check_choice(choice, tools, parallel=False).parallel is False


def allowed(mode: object = "auto", names: Any = ("g",), **more: Any) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools, **more}}


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_a_choice_may_allow_some_functions_only(mode: Any) -> None:
    some = check_choice(allowed(mode), TOOLS)
    assert some == ToolChoice(mode, allowed=frozenset({"g"}))
    assert some.callable(TOOLS) == (Tool("g"),)
    tools = [{"type": "function", "name": "g"}]
    assert check_choice({"type": "allowed_tools", "mode": mode, "tools": tools}, TOOLS, flat=True) == some


def test_responses_write_tools_flat_and_strict_unless_they_say_no() -> None:
    tools = [{"type": "function", "name": name} for name in "fgh"]
    tools[0] |= {"strict": False, "parameters": None, "description": "d"}  # type: ignore[dict-item]
    tools[1] |= {"strict": None}  # type: ignore[dict-item]
    assert check_tools(tools, flat=True) == (Tool("f", "d"), Tool("g", strict=True), Tool("h", strict=True))
    assert check_choice({"type": "function", "name": "f"}, TOOLS, flat=True) == ToolChoice("function", "f")
    for nested_form in (function(), function(name="g")):
        with pytest.raises(RequestError, match=r"tools\[0\]\.function.* are beside its type"):
            check_tools([nested_form], flat=True)
        with pytest.raises(RequestError, match="without a function's name"):
            check_choice(nested_form, TOOLS, flat=True)


@pytest.mark.parametrize(
    ("choice", "tools", "message"),
    [
        (allowed("none"), TOOLS, "does not list functions"),
        (allowed(names=()), TOOLS, "does not list functions"),
        (allowed(names=(1,)), TOOLS, "does not list functions"),
        (allowed(more=1), TOOLS, "does not list functions"),
        ({**allowed(), "mode": "auto"}, TOOLS, "does not list functions"),
        (allowed(names=("g", "h")), TOOLS, "allows the function 'h', which is not among"),
        (allowed(), (), "there are no tools"),
        ("required", (), "there are no tools"),
        ({"type": "function", "function": {"name": "f"}}, (), "there are no tools"),
        ({"type": "function", "function": {"name": "h"}}, TOOLS, "'h', which is not among the tools"),
        ("any", TOOLS, "'tool_choice' is 'any'"),
        (1, TOOLS, "'tool_choice' is 1"),
        ([], TOOLS, r"'tool_choice' is \[\]"),
        ({"type": "function", "name": "f"}, TOOLS, "without a function's name"),
        ({"type": "custom", "function": {"name": "f"}}, TOOLS, "without a function's name"),
        ({"type": "function", "function": {"name": ["f"]}}, TOOLS, "without a function's name"),
        ({"type": "function", "function": {"name": "f", "x": 1}}, TOOLS, "without a function's name"),
        ({"type": "function", "function": "f"}, TOOLS, "without a function's name"),
        ({"type": "allowed_tools", "allowed_tools": {}}, TOOLS, "does not list functions"),
    ],
)
def test_wrong_choices_are_named(choice: object, tools: tuple[Tool, ...], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        check_choice(choice, tools)


def test_what_a_choice_lets_the_model_do() -> None:
    named = ToolChoice("function", "g")
    assert named.callable(TOOLS) == (Tool("g"),)
    assert (named.forced, named.once) == (True, True)
    required = ToolChoice("required")
    assert required.callable(TOOLS) == TOOLS
    assert (required.forced, required.once) == (True, False)
    assert ToolChoice("required", parallel=False).once
    assert ToolChoice("none").callable(TOOLS) == ()
    assert not ToolChoice("auto").forced


def test_templates_get_openais_form_without_strict() -> None:
    assert Tool("f", "d", SCHEMA, strict=True).as_message() == {
        "type": "function",
        "function": {"name": "f", "description": "d", "parameters": SCHEMA},
    }
    assert "description" not in Tool("f").as_message()["function"]
