"""Constraints that killed the server, or made it answer 500: each is a 400 that says why, in every API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from llguidance import LLParserLimits

from foredraft.sampling import constraint
from http_server import Running, serving

USER = {"role": "user", "content": "hello"}
LEAST = -(2**63)


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with serving() as running:
        yield running


def post(running: Running, path: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(f"{running.url}{path}", json={"model": "fake", **body}, timeout=60)


def chat(**more: Any) -> tuple[str, dict[str, Any]]:
    return "/v1/chat/completions", {"messages": [USER], "max_tokens": 30, **more}


def formatted(schema: dict[str, Any], *, strict: bool | None = None) -> tuple[str, dict[str, Any]]:
    form = {"name": "x", "schema": schema, **({} if strict is None else {"strict": strict})}
    return chat(response_format={"type": "json_schema", "json_schema": form})


def function(schema: dict[str, Any], *, strict: bool) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return {"name": "f", "parameters": parameters, "strict": strict}


def everywhere(schema: dict[str, Any]) -> dict[str, tuple[str, dict[str, Any]]]:
    """A schema in each place of each API that makes an answer follow it."""
    lax = {"type": "function", "function": function(schema, strict=False)}
    strict = {"type": "function", "function": function(schema, strict=True)}
    flat = {"type": "function", **function(schema, strict=True)}
    text = {"format": {"type": "json_schema", "name": "x", "schema": schema}}
    claude = {"name": "f", "input_schema": function(schema, strict=True)["parameters"], "strict": True}
    messages = {"messages": [USER], "max_tokens": 30}
    return {
        "format": formatted(schema),
        "strict function": chat(tools=[strict]),
        "forced function": chat(tools=[lax], tool_choice="required"),
        "named function": chat(tools=[lax], tool_choice={"type": "function", "function": {"name": "f"}}),
        "format and function": chat(tools=[strict], **formatted({"type": "object"})[1]),
        "responses": ("/v1/responses", {"input": "hello", "max_output_tokens": 30, "text": text}),
        "responses function": ("/v1/responses", {"input": "hello", "max_output_tokens": 30, "tools": [flat]}),
        "messages": (
            "/v1/messages",
            {**messages, "output_config": {"format": {"type": "json_schema", "schema": schema}}},
        ),
        "messages function": ("/v1/messages", {**messages, "tools": [claude]}),
        "in a grammar": chat(grammar=f"start: %json {json.dumps(schema)}"),
    }


@pytest.mark.parametrize("place", everywhere({}))
@pytest.mark.parametrize(
    "schema",
    [{"const": LEAST}, {"enum": [1, LEAST + 512]}, {"const": 2**53 + 1}],
    ids=["-2^63", "…296", "2^53+1"],
)
def test_numbers_that_the_library_cannot_hold_are_refused(
    server: Running, place: str, schema: dict[str, Any]
) -> None:
    path, body = everywhere(schema)[place]
    reply = post(server, path, body)
    assert reply.status_code == 400
    assert "cannot be represented exactly" in reply.json()["error"]["message"]


def chained(separator: str, start: str, length: int) -> str:
    rules = [f"a{i}{separator} a{i + 1}" for i in range(length)]
    return "\n".join([f"{start}{separator} a0", *rules, f'a{length}{separator} "x"'])


HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "a chain in Lark": ({"grammar": chained(":", "start", 2800)}, "form a chain"),
    "a chain in GBNF": ({"grammar": chained(" ::=", "root", 3600)}, "form a chain"),
    "alternatives": (
        {"grammar": "root ::= " + "|".join(f'"a{i}" b' for i in range(5000)) + '\nb ::= "c" | "d" b'},
        "max is 2000",
    ),
    "optionals": ({"grammar": "start: " + " ".join(f'"{i}"?' for i in range(6000))}, "max is 2000"),
    "repetition": ({"regex": "((a{1000}){1000}){1000}"}, "cannot be used"),
    "groups": ({"regex": "(" * 20_000 + "a" + ")" * 20_000}, "cannot be used"),
    "parentheses": ({"grammar": "start: " + "(" * 20_000 + '"a"' + ")" * 20_000}, "cannot be used"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_grammar_too_large_for_the_library_is_refused(server: Running, name: str) -> None:
    more, says = HOSTILE[name]
    reply = post(server, *chat(**more))
    assert reply.status_code == 400
    assert says in reply.json()["error"]["message"]
    assert post(server, *chat(regex="ab")).json()["choices"][0]["message"]["content"] == "ab"


def test_a_chain_of_references_is_refused(server: Running) -> None:
    links = {
        f"a{i}": {"type": "object", "properties": {"x": {"$ref": f"#/$defs/a{i + 1}"}}} for i in range(300)
    }
    schema = {"$ref": "#/$defs/a0", "$defs": {**links, "a300": {"type": "string"}}}
    for path, body in (value for key, value in everywhere(schema).items() if "function" not in key):
        reply = post(server, path, body)
        assert reply.status_code == 400
        assert "levels" in reply.json()["error"]["message"]


# --- what constrains nothing, and what cannot be enforced ----------------------------------------------

RECORD = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "propertyNames": {"type": "string"},
    "additionalProperties": {"type": "string", "format": "path", "maxLength": 3, "default": "x"},
    "maxProperties": 1,
}
"""As zod 4 writes `z.record`."""


@pytest.mark.parametrize("place", everywhere({}))
def test_keywords_that_say_nothing_are_taken(server: Running, place: str) -> None:
    path, body = everywhere(RECORD)[place]
    assert post(server, path, body).status_code == 200


@pytest.mark.parametrize("strict", [True, False, None])
def test_what_cannot_be_enforced_is_refused_with_strict_only(server: Running, strict: bool | None) -> None:
    schema = {"type": "array", "items": {"type": "integer", "maximum": 9}, "maxItems": 3, "uniqueItems": True}
    reply = post(server, *formatted(schema, strict=strict))
    assert reply.status_code == (400 if strict else 200)
    if strict:
        assert "/uniqueItems: it cannot be enforced" in reply.json()["error"]["message"]


@pytest.mark.parametrize("strict", [True, False])
def test_a_function_that_is_not_strict_may_ask_for_what_cannot_be_enforced(
    server: Running, strict: bool
) -> None:
    schema = {"type": "array", "items": {"enum": [1, 2]}, "maxItems": 2, "uniqueItems": True}
    tool = {"type": "function", "function": function(schema, strict=strict)}
    reply = post(server, *chat(tools=[tool], tool_choice="required"))
    assert reply.status_code == (400 if strict else 200)
    if strict:
        assert "function 'f'" in reply.json()["error"]["message"]


# --- in the middle of an answer ------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_whose_constraint_leaves_nothing_ends_with_a_reason(
    server: Running, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of nobody's: 200, what there is, and why there is no more."""
    monkeypatch.setattr(constraint, "limits", lambda: LLParserLimits(max_items_in_row=100))
    constraint._compilers.clear()
    grammar = 'start: a\na: "x" | a a | a a a | a a a a'
    more = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    reply = post(server, *chat(grammar=grammar, max_tokens=4000, ignore_eos=True, **more))
    assert reply.status_code == 200
    if stream:
        chunks = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
        reasons = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]]
        assert reasons[-1] == "length"
        assert chunks[-1]["notice"]
        return
    answer = reply.json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert set(answer["choices"][0]["message"]["content"]) == {"x"}
    assert "too complex to enforce" in answer["notice"] or "does not allow" in answer["notice"]
