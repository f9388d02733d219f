"""JSON schemas: which keywords constrain, which say nothing, which cannot be enforced, and numbers."""

from __future__ import annotations

import itertools
import json
import logging
from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from foredraft.errors import NoNextTokenError, RequestError
from foredraft.sampling import json_schema
from foredraft.sampling.constraint import compile_constraint
from foredraft.sampling.json_schema import prepare
from foredraft.sampling.schema_places import BY_NAME, MANY, MAX_LEVELS, ONE
from foredraft.testing import FakeTokenizer
from foredraft.types import Constraint

TOKENIZER = FakeTokenizer()
[END] = TOKENIZER.end_tokens
STRING: dict[str, Any] = {"type": "string"}
UNIQUE = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}


def accepts(schema: dict[str, Any], text: str, *, strict: bool = True) -> bool:
    """Whether a text is a whole answer under a schema."""
    follower = compile_constraint(Constraint("json_schema", json.dumps(schema), strict), TOKENIZER)
    row = np.zeros(258, np.float32)
    try:
        for byte in text.encode():
            if follower.mask(row)[byte] < 0:
                return False
            follower.advance([byte])
    except NoNextTokenError:
        return False
    return follower.complete or bool(follower.mask(row)[END] == 0)


# --- what constrains nothing ---------------------------------------------------------------------------

NOTHING: dict[str, Any] = {
    "$schema": "https://example.org/a-dialect-of-its-own",
    "$comment": "x",
    "$vocabulary": {"https://json-schema.org/draft/2020-12/vocab/core": True},
    "$dynamicAnchor": "x",
    "$recursiveAnchor": True,
    "title": "x",
    "description": "x",
    "default": "not this",
    "deprecated": True,
    "readOnly": True,
    "writeOnly": True,
    "examples": ["not this"],
    "example": "not this",
    "contentMediaType": "text/html",
    "contentEncoding": "base64",
    "contentSchema": {"type": "integer"},
    "discriminator": {"propertyName": "kind"},
    "externalDocs": {"url": "https://example.org"},
    "xml": {"name": "x"},
    "nullable": True,
    "x-order": 3,
    "x-meta": {"uniqueItems": True},
    "uniqueItems": False,
    "propertyNames": {"type": "string"},
    "unevaluatedProperties": True,
    "unevaluatedItems": {},
    "not": False,
    "if": {"type": "integer"},
    "then": False,
    "else": False,
    "minContains": 2,
    "maxContains": 2,
    "dependentRequired": {},
    "dependentSchemas": {},
    "dependencies": {},
    "$defs": {"unused": {"uniqueItems": False}},
    "definitions": {},
    "minProperties": 3,
    "maxItems": 0,
    "maximum": 1,
}


@pytest.mark.parametrize("keyword", NOTHING)
def test_what_says_nothing_about_a_string_is_no_reason_to_refuse(keyword: str) -> None:
    schema = {"type": "string", "maxLength": 3, keyword: NOTHING[keyword]}
    assert accepts(schema, '"abc"')
    assert not accepts(schema, '"abcd"')
    assert not accepts(schema, "1")


@pytest.mark.parametrize(
    "name", ["path", "binary", "password", "byte", "int64", "uri-reference", "regex", "idn-email", "x"]
)
def test_a_format_that_is_not_known_is_a_note(name: str) -> None:
    assert accepts({"type": "string", "format": name}, '"any text"')


def test_a_format_that_is_known_is_followed() -> None:
    assert accepts({"type": "string", "format": "ipv4"}, '"10.0.0.1"')
    assert not accepts({"type": "string", "format": "ipv4"}, '"localhost"')


def test_a_default_is_no_demand() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string", "default": "x"}},
        "default": {"a": "y"},
        "additionalProperties": False,
    }
    assert accepts(schema, "{}")
    assert accepts(schema, '{"a":"z"}')


def test_keywords_as_the_names_of_properties_are_names() -> None:
    names = [*NOTHING, "enum", "const", "format", "multipleOf"]
    schema = {"type": "object", "properties": {name: {"enum": ["v"]} for name in names}, "required": names}
    assert accepts(schema, json.dumps(dict.fromkeys(names, "v"), separators=(",", ":")))


# --- said in other keywords ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        (
            {"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": STRING},
            ["{}", '{"a":"x"}', '{"a":"x","b":"y"}'],
            ['{"c":"x"}', '{"a":1}'],
        ),
        (
            {"type": "object", "additionalProperties": STRING, "propertyNames": {"$ref": "#/$defs/key"}}
            | {"$defs": {"key": {"type": "string", "pattern": "^x"}}},
            ["{}", '{"x1":"a"}'],
            ['{"y":"a"}', '{"x":1}'],
        ),
        (
            {"type": "object", "properties": {"a": STRING}, "unevaluatedProperties": False},
            ["{}", '{"a":"x"}'],
            ['{"b":1}'],
        ),
        (
            {"type": "object", "unevaluatedProperties": STRING, "propertyNames": {"enum": ["a"]}},
            ["{}", '{"a":"x"}'],
            ['{"a":1}', '{"b":"x"}'],
        ),
        (
            {"type": "object", "propertyNames": {"const": "a"}, "unevaluatedProperties": False},
            ["{}"],
            ['{"a":1}'],
        ),
        ({"type": "array", "prefixItems": [STRING], "unevaluatedItems": False}, ['["a"]'], ['["a",1]']),
        ({"type": "array", "items": STRING, "unevaluatedItems": False}, ['["a","b"]'], ["[1]"]),
        (
            {"oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}]}
            | {
                "$defs": {
                    kind: {
                        "type": "object",
                        "properties": {"kind": {"const": kind}, "age": {"type": "integer"}},
                        "required": ["kind"],
                    }
                    for kind in ("cat", "dog")
                }
            },
            ['{"kind":"cat","age":3}', '{"kind":"dog"}'],
            ['{"kind":"cow"}'],
        ),
        ({"oneOf": [{"const": 1}, {"const": 2}]}, ["1", "2"], ["3"]),
        ({"oneOf": [STRING, {"type": "integer"}], "anyOf": [{"const": 1}, {"const": "a"}]}, ["1"], ["2"]),
        ({"type": "array", "items": {"not": {}}}, ["[]"], ["[1]"]),
        ({"type": "array", "uniqueItems": True, "maxItems": 1}, ["[1]"], ["[1,1]"]),
        ({"type": "array", "contains": STRING, "minContains": 0}, ["[1]"], ["{}"]),
        ({"type": "string", "minLength": 2.0, "maxLength": 3.0}, ['"ab"'], ['"a"', '"abcd"']),
        (
            {"type": "object", "properties": {"a": STRING}, "required": ["a"], "minProperties": 1.0},
            ['{"a":"x"}'],
            ["{}"],
        ),
        (
            {"$ref": "#/components/schemas/A"}
            | {"components": {"schemas": {"A": {"type": "string", "format": "path", "examples": [1]}}}},
            ['"/tmp"'],
            ["1"],
        ),
    ],
)
def test_what_can_be_said_otherwise_is_followed(
    schema: dict[str, Any], right: list[str], wrong: list[str]
) -> None:
    assert [text for text in right if not accepts(schema, text)] == []
    assert [text for text in wrong if accepts(schema, text)] == []


# --- what cannot be enforced ---------------------------------------------------------------------------

UNENFORCED: list[tuple[str, dict[str, Any], str]] = [
    ("uniqueItems", UNIQUE, "[1,1]"),
    ("contains", {"type": "array", "contains": STRING}, "[1]"),
    ("not", {"type": "string", "not": {"const": "a"}}, '"a"'),
    ("if", {"if": STRING, "then": {"const": "a"}}, '"b"'),
    ("dependentRequired", {"type": "object", "dependentRequired": {"a": ["b"]}}, '{"a":1}'),
    ("dependentSchemas", {"type": "object", "dependentSchemas": {"a": False}}, '{"a":1}'),
    ("dependencies", {"type": "object", "dependencies": {"a": ["b"]}}, '{"a":1}'),
    ("unevaluatedProperties", {"allOf": [{"type": "object"}], "unevaluatedProperties": False}, '{"a":1}'),
    ("propertyNames", {"type": "object", "propertyNames": {"maxLength": 1}}, '{"ab":1}'),
    ("pattern", {"type": "string", "pattern": "^(?!a)"}, '"a"'),
    ("pattern", {"type": "string", "pattern": r"^(.)\1$"}, '"ab"'),
    ("minProperties", {"type": "object", "properties": {"a": STRING}, "minProperties": 2}, "{}"),
    ("$dynamicRef", {"type": "string", "$dynamicRef": "#node"}, '"a"'),
    ("minimum", {"type": "integer", "minimum": -(2**63)}, "-1"),
    ("minimum", {"type": "integer", "minimum": -1e19}, "-1"),
    ("maximum", {"type": "number", "maximum": 2**53 + 1}, "1"),
    ("maximum", {"type": "integer", "maximum": 2**64 - 1}, "1"),
    ("exclusiveMaximum", {"type": "integer", "exclusiveMaximum": 2**53}, "1"),
    ("multipleOf", {"type": "number", "multipleOf": 1e-300}, "1"),
    ("multipleOf", {"type": "integer", "multipleOf": 2**53 + 1}, "1"),
    ("multipleOf", {"type": "number", "multipleOf": 0.07}, "1"),
]


@pytest.mark.parametrize(("keyword", "schema", "text"), UNENFORCED, ids=lambda value: str(value)[:40])
def test_what_cannot_be_enforced_is_refused_with_strict_only(
    keyword: str, schema: dict[str, Any], text: str
) -> None:
    with pytest.raises(RequestError, match=rf"/{keyword.replace('$', '.')}: ") as caught:
        prepare(schema, strict=True)
    assert "strict" in str(caught.value.hint)
    assert prepare(schema, strict=False).unenforced == (keyword,)
    assert accepts(schema, text, strict=False)


def test_one_of_schemas_that_overlap_is_any_of_them_without_strict() -> None:
    schema = {"oneOf": [{"type": "string", "maxLength": 3}, {"type": "string", "minLength": 2}]}
    assert prepare(schema, strict=False).unenforced == ("oneOf",)
    assert accepts(schema, '"abcd"', strict=False)
    with pytest.raises(RequestError, match="oneOf"):
        accepts(schema, '"abcd"')


def test_what_is_not_enforced_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    json_schema._told.clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            prepare(UNIQUE, strict=False)
    assert [record.getMessage().split(": ")[1] for record in caplog.records] == ['uniqueItems. With "strict"']


# --- numbers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["const", "enum", "inside"])
@pytest.mark.parametrize(
    "number",
    [-(2**63), -(2**63) + 512, 2**63 - 1, 2**63, 2**53 + 1, -(2**53) - 1, 2**64, 10**400, float("inf")],
)
def test_a_constant_that_would_come_out_as_another_is_refused(where: str, number: float) -> None:
    schemas: dict[str, dict[str, Any]] = {
        "const": {"const": number},
        "enum": {"enum": [1, number]},
        "inside": {"const": [{"a": number}]},
    }
    for strict in (True, False):
        with pytest.raises(RequestError, match="cannot be represented exactly") as caught:
            prepare(schemas[where], strict=strict)
        assert len(str(caught.value)) < 300


@pytest.mark.parametrize("number", [0, -1, 2**53, -(2**53), 2**53 + 2, 2**62, -(2**62), 2.5, 1e16, -0.25])
def test_a_constant_that_can_be_held_is_written_as_it_is(number: float) -> None:
    follower = compile_constraint(Constraint("json_schema", json.dumps({"const": number})), TOKENIZER)
    written = bytes(follower.forced()[:30]).decode()
    assert json.loads(written) == number
    if isinstance(number, int):
        assert int(written) == number


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"type": "integer", "maximum": 2**53, "minimum": 2**53 - 1}, [2**53], [2**53 + 1]),
        ({"type": "integer", "minimum": 2**56 + 2**8}, [2**56 + 2**8], [2**56 + 2**8 - 1]),
        ({"type": "integer", "minimum": 0, "maximum": 2**63 - 1}, [2**63 - 1], [2**63, -1]),
        ({"type": "number", "multipleOf": 0.01}, [0.25], [0.255]),
        ({"type": "integer", "multipleOf": 7}, [49], [50]),
    ],
)
def test_bounds_that_can_be_held_are_exact(
    schema: dict[str, Any], right: list[float], wrong: list[float]
) -> None:
    assert all(accepts(schema, json.dumps(value)) for value in right)
    assert not any(accepts(schema, json.dumps(value)) for value in wrong)


@pytest.mark.parametrize("value", [0, -3, True, "3", None])
def test_a_multiple_of_nothing_is_refused(value: Any) -> None:
    with pytest.raises(RequestError, match="multipleOf"):
        prepare({"type": "integer", "multipleOf": value}, strict=False)


def test_multiples_whose_common_multiple_cannot_be_held_are_refused() -> None:
    parts = [{"type": "integer", "multipleOf": 65537}, {"multipleOf": 65539}]
    with pytest.raises(RequestError, match="65537 and 65539"):
        prepare({"allOf": parts}, strict=False)


# --- depth ---------------------------------------------------------------------------------------------


def chain(length: int, link: Any) -> dict[str, Any]:
    names = [f"a{i}" for i in range(length)]
    links = {name: link(f"#/$defs/{following}") for name, following in pairwise(names)}
    return {"$ref": "#/$defs/a0", "$defs": {**links, names[-1]: {"type": "object"}}}


LINKS = {
    "bare": lambda to: {"$ref": to},
    "sibling": lambda to: {"type": "object", "$ref": to},
    "property": lambda to: {"type": "object", "properties": {"x": {"$ref": to}}},
    "any": lambda to: {"anyOf": [{"$ref": to}, {"type": "null"}]},
}


@pytest.mark.parametrize("link", LINKS)
def test_a_chain_of_references_is_bounded(link: str) -> None:
    for length in (MAX_LEVELS + 10, 3000):
        with pytest.raises(RequestError, match=f"{MAX_LEVELS} levels"):
            prepare(chain(length, LINKS[link]), strict=False)
    schema = chain(50, LINKS[link])
    compile_constraint(Constraint("json_schema", json.dumps(schema)), TOKENIZER)


def test_schemas_within_schemas_are_bounded() -> None:
    schema: dict[str, Any] = {}
    for _ in range(MAX_LEVELS + 1):
        schema = {"type": "array", "items": schema}
    with pytest.raises(RequestError, match="levels"):
        prepare(schema, strict=True)


def test_a_schema_that_leads_to_itself_is_fine() -> None:
    tree = {"type": "object", "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}}
    assert accepts(tree, '{"left":{"right":{}}}')


def test_what_was_prepared_stays_as_it_is() -> None:
    schemas = [{**UNIQUE, **NOTHING}, chain(5, LINKS["any"]), {"oneOf": [STRING, {"type": "integer"}]}]
    for schema in schemas:
        once = prepare(schema, strict=False).schema
        assert prepare(once, strict=True).schema == once


MALFORMED: list[dict[str, Any]] = [
    {"properties": {"a": {}}, "required": 5, "minProperties": 1},
    {"properties": {"a": {}}, "minProperties": None, "maxProperties": 1},
    {"properties": 5, "maxProperties": 2},
    {"propertyNames": {"pattern": []}},
    {"allOf": 5, "anyOf": [{}], "oneOf": [STRING, {"type": "null"}]},
    {"anyOf": [{}], "oneOf": [STRING, {"type": "null"}], "allOf": 5},
    {"oneOf": [{"$ref": f"#/anyOf/{'0' * 5000}"}, {}], "anyOf": [{}]},
]


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("schema", MALFORMED, ids=range(len(MALFORMED)))
def test_a_value_of_a_wrong_kind_is_refused(schema: dict[str, Any], strict: bool) -> None:
    with pytest.raises(RequestError, match="wrong type"):
        prepare(schema, strict=strict)


WRONG: list[Any] = [
    None,
    True,
    5,
    -1,
    0.5,
    1e300,
    10**400,
    "x",
    "#/a",
    [],
    [5],
    [[]],
    {},
    {"a": 5},
    [None, {}],
]


def test_any_value_under_any_keyword_is_taken_or_refused() -> None:
    names = sorted({*json_schema._SPECIAL, *BY_NAME, *MANY, *ONE, *json_schema._AS_THEY_ARE})
    for one, other in itertools.combinations(names, 2):
        for value, beside in itertools.product(WRONG, WRONG[::3]):
            with suppress(RequestError):
                prepare({one: value, other: beside, "properties": {"a": {}}}, strict=False)
