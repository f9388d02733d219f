"""Forced calls: what the constraint lets through is what the parser reads as calls, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from foredraft.server.tools.choice import Tool, ToolChoice
from foredraft.server.tools.deltas import collect
from foredraft.server.tools.dialect import Dialect, Forced
from foredraft.server.tools.hermes import HERMES
from foredraft.server.tools.llama3 import LLAMA3
from foredraft.server.tools.mistral import MISTRAL, MISTRAL_NAMED
from foredraft.server.tools.schema import call_schema
from tool_cases import called, deltas, tools_named

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TREE = {
    "type": "object",
    "properties": {"root": {"$ref": "#/$defs/Node"}},
    "required": ["root"],
    "additionalProperties": False,
    "$defs": {
        "Node": {
            "type": "object",
            "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/Node"}}},
            "required": ["children"],
            "additionalProperties": False,
        }
    },
}
TOOLS = (Tool("weather", "", CITY), Tool("grow", "", TREE))
WEATHER = ("weather", '{"city": "Nuuk"}')
GROW = ("grow", '{"root": {"children": [{"children": []}]}}')
REQUIRED = ToolChoice("required")
ONE = ToolChoice("required", parallel=False)
NAMED = ToolChoice("function", "grow")


def write(dialect: Dialect, calls: list[tuple[str, str]]) -> str:
    """The calls as a model of this dialect writes them."""
    if dialect is HERMES:
        bodies = [f'{{"name": "{name}", "arguments": {arguments}}}' for name, arguments in calls]
        return "\n".join(f"<tool_call>\n{body}\n</tool_call>" for body in bodies)
    if dialect is LLAMA3:
        return "; ".join(f'{{"name": "{name}", "parameters": {arguments}}}' for name, arguments in calls)
    if dialect is MISTRAL_NAMED:
        return "".join(f"[TOOL_CALLS]{name}[ARGS]{arguments}" for name, arguments in calls)
    bodies = [f'{{"name": "{name}", "arguments": {arguments}}}' for name, arguments in calls]
    return f"[TOOL_CALLS][{', '.join(bodies)}]"


def allows(forced: Forced, text: str) -> bool:
    """Whether the constraint lets a model write exactly this."""
    assert forced.kind in ("json_schema", "grammar")
    grammar = (
        LLMatcher.grammar_from_json_schema(forced.source)
        if forced.kind == "json_schema"
        else LLMatcher.grammar_from_lark(forced.source)
    )
    tokenizer = LLTokenizer("byte")
    matcher = LLMatcher(tokenizer, grammar)
    assert not matcher.is_error(), matcher.get_error()
    tokens = tokenizer.tokenize_str(text)
    return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())


dialects = pytest.mark.parametrize(
    "dialect", [HERMES, LLAMA3, MISTRAL, MISTRAL_NAMED], ids=["hermes", "llama3", "mistral", "mistral-named"]
)


@dialects
@pytest.mark.parametrize(
    ("choice", "calls", "allowed"),
    [
        (REQUIRED, [WEATHER], True),
        (REQUIRED, [GROW], True),
        (ONE, [WEATHER], True),
        (NAMED, [GROW], True),
        (NAMED, [WEATHER], False),
        (NAMED, [GROW, GROW], False),
        (ONE, [WEATHER, GROW], False),
        (REQUIRED, [("weather", '{"city": 3}')], False),
        (REQUIRED, [("weather", "{}")], False),
        (REQUIRED, [("weather", '{"root": {"children": []}}')], False),
        (REQUIRED, [("grow", '{"root": {"children": [{}]}}')], False),
        (REQUIRED, [("other", "{}")], False),
    ],
)
def test_forced_calls(
    dialect: Dialect, choice: ToolChoice, calls: list[tuple[str, str]], allowed: bool
) -> None:
    forced = dialect.grammar(TOOLS, choice)
    assert forced is not None
    text = write(dialect, calls)
    fits = text.startswith(forced.prefix) and allows(forced, text[len(forced.prefix) :])
    assert fits == allowed
    if allowed:
        names = [tool.name for tool in TOOLS]
        answer = collect(deltas(dialect, [forced.prefix, text[len(forced.prefix) :]], names))
        assert called(answer) == calls
        assert answer.text == ""


@dialects
def test_several_calls_where_the_dialect_has_them(dialect: Dialect) -> None:
    forced = dialect.grammar(TOOLS, REQUIRED)
    assert forced is not None
    text = write(dialect, [WEATHER, GROW, WEATHER])[len(forced.prefix) :]
    assert allows(forced, text) == (not dialect.one_call_a_message)


@dialects
def test_plain_words_are_not_let_through(dialect: Dialect) -> None:
    forced = dialect.grammar(TOOLS, REQUIRED)
    assert forced is not None
    assert not allows(forced, "Hello")
    assert not allows(forced, "")


@dialects
@pytest.mark.parametrize("mode", ["auto", "none"])
def test_nothing_is_forced_unless_asked(dialect: Dialect, mode: Any) -> None:
    assert dialect.grammar(TOOLS, ToolChoice(mode)) is None


@dialects
def test_the_prefix_shows_nothing_by_itself_until_a_call_begins(dialect: Dialect) -> None:
    forced = dialect.grammar(TOOLS, NAMED)
    assert forced is not None
    assert dialect.parser(tools_named(["grow"])).feed(forced.prefix) == []


def test_references_keep_leading_to_the_same_place() -> None:
    tool = Tool(
        "f",
        "",
        {
            "type": "object",
            "properties": {
                "again": {"$ref": "#"},
                "$ref": {"type": "string"},
                "default": {"$ref": "#/definitions/x"},
                "far": {"$ref": "https://example.org/schema"},
                "list": {"anyOf": [{"$ref": "#/definitions/x"}]},
            },
            "definitions": {"x": {"const": {"$ref": "#/kept"}}},
        },
    )
    schema = call_schema([tool], arguments="arguments")
    assert schema["properties"]["arguments"] == {"$ref": "#/$defs/f"}
    assert schema["$defs"]["f"] == {
        "type": "object",
        "properties": {
            "again": {"$ref": "#/$defs/f"},
            "$ref": {"type": "string"},
            "default": {"$ref": "#/$defs/f/definitions/x"},
            "far": {"$ref": "https://example.org/schema"},
            "list": {"anyOf": [{"$ref": "#/$defs/f/definitions/x"}]},
        },
        "definitions": {"x": {"const": {"$ref": "#/kept"}}},
    }


def test_the_name_is_written_first() -> None:
    schema = call_schema(TOOLS, arguments="parameters")
    assert [list(call["properties"]) for call in schema["anyOf"]] == [["name", "parameters"]] * 2
    assert json.loads(json.dumps(schema)) == schema
