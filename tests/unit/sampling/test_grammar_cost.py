"""No source within the limits is looked at for long before llguidance's child sees it: the cost is linear."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from foredraft.errors import RequestError
from foredraft.sampling.grammar import MAX_SOURCE, source_of
from foredraft.sampling.json_schema import MAX_SCHEMAS, prepare
from foredraft.types import Constraint

AMPLE = 10.0
"""Seconds, on a busy machine; what grew with the square of the length took minutes."""

SIZE = MAX_SOURCE - 20
LARK: dict[str, Callable[[], str]] = {
    "quotes that are not closed": lambda: "start: " + '"\\' * (SIZE // 2),
    "patterns that are not closed": lambda: "start: " + "/\\" * (SIZE // 2),
    "tokens that are not closed": lambda: "start: " + "<" * SIZE,
    "parameters that are not closed": lambda: "start: x\n" + "a{\n" * (SIZE // 3),
    "options that are not closed": lambda: "start: x\n" + "a[\n" * (SIZE // 3),
    "schemas that are not closed": lambda: "start: " + '%json ["' * (SIZE // 8),
    "spaces": lambda: "start:" + " " * SIZE,
    "names": lambda: "start: " + "a " * (SIZE // 2),
    "one name": lambda: "start: " + "a" * SIZE,
    "rules": lambda: "start: x\n" + "a:b\n" * (SIZE // 4),
}
GBNF: dict[str, Callable[[], str]] = {
    "comments": lambda: "root ::= a " + "# " * (SIZE // 2) + "\na",
    "comments without an end": lambda: 'root ::= "a"\nb ' + "#x " * (SIZE // 3),
    "quotes": lambda: "root ::= " + '"\\' * (SIZE // 2),
    "sets": lambda: "root ::= " + "[\\" * (SIZE // 2),
    "a repetition": lambda: 'root ::= "a"{1,' + " " * SIZE,
    "repetitions": lambda: 'root ::= "a"' + "*" * SIZE,
    "groups": lambda: "root ::= " + "(" * SIZE,
    "names": lambda: "root ::= " + "a " * (SIZE // 2),
    "a name": lambda: "root ::= " + "a" * SIZE,
    "rules of one letter": lambda: "root ::= a\n" + "a::=a\n" * (SIZE // 6),
}
SOURCES = {
    **{f"Lark, {name}": make for name, make in LARK.items()},
    **{f"GBNF, {name}": make for name, make in GBNF.items()},
}


@pytest.mark.parametrize("name", SOURCES)
def test_a_grammar_is_read_in_no_time(name: str) -> None:
    began = time.monotonic()
    with suppress(RequestError):
        source_of(Constraint("grammar", SOURCES[name]()))
    assert time.monotonic() - began < AMPLE


def nested(depth: int, around: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = around(schema)
    return schema


NAMED = {"propertyNames": {"enum": ["a"]}}
SCHEMAS: dict[str, Callable[[], dict[str, Any]]] = {
    "names before values": lambda: nested(60, lambda inner: {**NAMED, "additionalProperties": inner}),
    "values before names": lambda: nested(60, lambda inner: {"additionalProperties": inner, **NAMED}),
    "unevaluated before names": lambda: nested(60, lambda inner: {"unevaluatedProperties": inner, **NAMED}),
    "constants": lambda: {"oneOf": [{"const": number} for number in range(5000)]},
    "objects": lambda: {
        "oneOf": [
            {"properties": {"a": {"const": i}}, "required": ["a"], "type": "object"} for i in range(900)
        ]
    },
    "references to a chain": lambda: {
        "x": nested(100, lambda inner: {"x": inner}),
        "allOf": [{"$ref": "#" + "/x" * depth} for depth in range(1, 100)],
    },
    "references without an end": lambda: {
        "$defs": {f"a{i}": {"$ref": f"#/$defs/a{(i + 1) % 900}"} for i in range(900)},
        "oneOf": [{"$ref": f"#/$defs/a{i}"} for i in range(90)],
    },
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_is_prepared_in_no_time(name: str) -> None:
    schema = SCHEMAS[name]()
    assert len(json.dumps(schema)) < MAX_SOURCE
    began = time.monotonic()
    with suppress(RequestError):
        prepare(schema, strict=False)
    assert time.monotonic() - began < AMPLE


def test_the_schemas_within_one_are_bounded() -> None:
    with pytest.raises(RequestError, match=f"more than {MAX_SCHEMAS} schemas"):
        prepare({"anyOf": [{}] * (MAX_SCHEMAS + 1)}, strict=False)


def test_five_thousand_constants_exclude_each_other() -> None:
    assert prepare(SCHEMAS["constants"](), strict=False).unenforced == ()
    twice = {"oneOf": [{"const": 1}, {"const": 1.0}]}
    assert prepare(twice, strict=False).unenforced == ("oneOf",)
