"""What schemas can make of the walks through them: loops, forks without number, and what is no schema."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from typing import Any

import pytest
from llguidance import LLMatcher

from call_forms import FORMS
from foredraft.errors import RequestError
from foredraft.server.tools.choice import Tool, ToolChoice
from foredraft.server.tools.deltas import collect
from foredraft.server.tools.values import types_of

REQUIRED = ToolChoice("required")


@pytest.mark.parametrize("name", ["qwen-coder", "glm", "gemma", "function-gemma", "lfm"])
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    "definition",
    [
        {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}, {"type": "string"}]},
        {"$ref": "#/$defs/a"},
        {"anyOf": [{"$ref": "#/$defs/b"}, {"$ref": "#/$defs/b"}]},
    ],
)
def test_a_small_schema_makes_a_small_grammar(name: str, strict: bool, definition: Any) -> None:
    """However many ways there are through its references. Unbounded, each of these takes hours."""
    more = {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]}
    doubled: dict[str, Any] = {"type": "string"}
    for _ in range(25):
        doubled = {"type": ["object", "object"], "properties": {"p": doubled}, "additionalProperties": False}
    properties = {"q": {"$ref": "#/$defs/a"}, "d": doubled}
    tool = Tool(
        "f",
        parameters={"type": "object", "properties": properties, "$defs": {"a": definition, "b": more}},
        strict=strict,
    )
    with suppress(RequestError) if strict else nullcontext():
        forced = FORMS[name].dialect.grammar([tool], REQUIRED)
        assert forced is not None
        assert len(forced.source) < 100_000
    parser = FORMS[name].dialect.parser([tool])
    assert collect([*parser.feed(FORMS[name].write([("f", {"q": "x"})])), *parser.finish()]).calls


def test_alternatives_that_are_too_many_are_any_text() -> None:
    many = {"anyOf": [{"const": f"word {number}"} for number in range(1000)]}
    parameters = {"type": "object", "properties": {"v": many}, "required": ["v"]}
    forced = FORMS["qwen-coder"].dialect.grammar([Tool("f", parameters=parameters)], REQUIRED)
    assert forced is not None
    assert "word" not in forced.source
    assert LLMatcher.validate_grammar(LLMatcher.grammar_from_lark(forced.source)) == ""
    with pytest.raises(RequestError, match="alternatives"):
        FORMS["qwen-coder"].dialect.grammar([Tool("f", parameters=parameters, strict=True)], REQUIRED)


@pytest.mark.parametrize("name", ["qwen-coder", "glm", "lfm"])
def test_what_refers_to_much_is_written_out_within_bounds(name: str) -> None:
    """Each value that refers to others has all of them with it: a few kilobytes must not become gigabytes."""
    large = {"type": "array", "items": {"enum": ["x" * 100_000]}}
    properties = {f"p{number}": {"type": "array", "items": {"$ref": "#/$defs/D"}} for number in range(500)}
    parameters = {"type": "object", "properties": properties, "$defs": {"D": large}}
    forced = FORMS[name].dialect.grammar([Tool("f", parameters=parameters)], REQUIRED)
    assert forced is not None
    assert len(forced.source) < 10 << 20
    with pytest.raises(RequestError, match="cannot be enforced in the form"):
        FORMS[name].dialect.grammar([Tool("f", parameters=parameters, strict=True)], REQUIRED)


def test_a_type_that_is_no_text_says_nothing() -> None:
    assert types_of({"type": [{}]}, {}) is None
    assert types_of({"type": [{}, "string"]}, {}) == frozenset({"string"})
