"""Random schemas, grammars and regexes, hostile ones too: none may end the process that compiles it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import strategies as st
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from foredraft.errors import ChildError
from foredraft.isolation.pool import ChildPool
from foredraft.types import ConstraintKind
from fuzzing import until_it_is_over

ENOUGH = 60.0
"""Seconds for one constraint and one answer; a trial of 2 s is part of it."""


@pytest.fixture(scope="module")
def pool() -> Iterator[ChildPool]:
    with ChildPool(size=1, memory=2 << 30) as children:
        yield children


# --- what is drawn -------------------------------------------------------------------------------------

NUMBERS = st.one_of(
    st.integers(-5, 20),
    st.sampled_from([2**31, 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, 2**63, -(2**63), -(2**63) + 512]),
    st.sampled_from([2**64, 10**30, -(10**400), 0.1, 0.5, 1e-9, 1e-300, 5e-324, 1e300, -1.5]),
)
PATTERNS = st.text(alphabet="ab(){}[]|*+?^$.\\d-,12é/&~", max_size=12)
NAMES = st.sampled_from(["a", "b", "c", 'x"y', "é", "", "$ref", "items"])
FORMATS = ["date", "date-time", "email", "uuid", "ipv6", "uri", "path", "binary", "x"]
SIMPLE: dict[str, st.SearchStrategy[Any]] = {
    "type": st.sampled_from(["string", "integer", "number", "boolean", "null", "array", "object"])
    | st.lists(st.sampled_from(["string", "integer", "null", "object"]), max_size=3)
    | st.sampled_from(["any", 3, None]),
    **dict.fromkeys(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"], NUMBERS),
    **dict.fromkeys(["minLength", "maxLength", "minItems", "maxItems"], NUMBERS),
    **dict.fromkeys(["minProperties", "maxProperties"], NUMBERS),
    "pattern": PATTERNS,
    "format": st.sampled_from(FORMATS),
    "const": NUMBERS | st.text(max_size=5) | st.none() | st.lists(NUMBERS, max_size=2),
    "enum": st.lists(NUMBERS | st.text(max_size=3) | st.booleans() | st.none(), max_size=4),
    "required": st.lists(NAMES, max_size=3),
    "uniqueItems": st.booleans(),
    "default": NUMBERS,
    "description": st.text(max_size=5),
    "$ref": st.sampled_from(
        ["#", "#/$defs/a", "#/$defs/b", "#/properties/a", "#/x/y", "http://x.org/y", "#a"]
    ),
    "$anchor": st.sampled_from(["a", "b"]),
    "dependentRequired": st.dictionaries(NAMES, st.lists(NAMES, max_size=2), max_size=2),
    "x-guidance": st.sampled_from([{}, {"lenient": True}, {"whitespace_pattern": "("}, 3]),
}


def schemas_of(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several, named = st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)
    return st.fixed_dictionaries(
        {},
        optional={
            **SIMPLE,
            **dict.fromkeys(["items", "additionalProperties", "propertyNames", "contains", "not"], inner),
            **dict.fromkeys(["if", "then", "else", "unevaluatedProperties", "unevaluatedItems"], inner),
            **dict.fromkeys(["allOf", "anyOf", "oneOf", "prefixItems"], several),
            **dict.fromkeys(["properties", "patternProperties", "$defs", "dependentSchemas", "x"], named),
        },
    )


SCHEMAS = st.recursive(st.booleans() | st.fixed_dictionaries({}, optional=SIMPLE), schemas_of, max_leaves=12)
DOCUMENTS = SCHEMAS.filter(lambda schema: isinstance(schema, dict))

WORDS = [
    " ",
    "\n",
    "a",
    "b",
    "c",
    "|",
    "(",
    ")",
    "*",
    "+",
    "?",
    '"x"',
    '"y"',
    "#",
    "{2}",
    "{0,3}",
    "{1000}",
    ".",
]
LARK_WORDS = [
    *WORDS,
    "start: ",
    "\na: ",
    "\nb: ",
    "\nC: ",
    "/[a-z]/",
    "/(a|b)*/",
    "<[5]>",
    "<[*]>",
    "%json {}",
]
LARK_WORDS += ["%ignore /x/", "&", "~", "[lazy]", "[max_tokens=3]", "%regex {}", "->", "D", "a::0b1", "%json"]
GBNF_WORDS = [
    *WORDS,
    "root ::= ",
    "\na ::= ",
    "\nb ::= ",
    "\nc ::= ",
    "[a-z]",
    "[^x]",
    r"[\u00e9]",
    r'"\n"',
    "[]",
]
GBNF_WORDS += [
    "<[5]>",
    "!<[7]>",
    r"\q",
    '"',
    "[",
    "\\",
    "\x00",
    "\ufeff",
    "é",
    r'"\U0001F600"',
    r"[\x00-\xff]",
]


def grammars(words: list[str], beginning: str) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(words), max_size=40).map(lambda drawn: beginning + " ".join(drawn))


def repeated(kind: str, count: int) -> str:
    """Grammars whose size is what is hostile in them."""
    return {
        "chain": "\n".join(["start: a0", *(f"a{i}: a{i + 1}" for i in range(count)), f'a{count}: "x"']),
        "alternatives": "start: " + " | ".join(f'"{i}" b' for i in range(count)) + '\nb: "x" b | "y"',
        "optionals": "root ::= " + " ".join(f'"{i}"?' for i in range(count)),
        "nested": "root ::= " + "(" * count + '"a"' + ")?" * count,
        "classes": "root ::= " + "[a-z]" * count,
    }[kind]


SIZES = ["chain", "alternatives", "optionals", "nested", "classes"]
LARGE = st.builds(repeated, st.sampled_from(SIZES), st.integers(1, 4000))
REGEXES = st.one_of(
    PATTERNS,
    st.lists(
        st.sampled_from(["a", "[a-z]", "(", ")", "|", "*", "{9}", "{1000}", r"\d", ".", "(?i)", r"\p{L}"])
    ).map("".join),
    st.integers(1, 20_000).map(lambda count: "(a" * count + ")*" * count),
)


# --- and checked ---------------------------------------------------------------------------------------


def follow(
    pool: ChildPool, kind: ConstraintKind, source: str, number: int, *, strict: bool = True
) -> str | None:
    try:
        answer: str | None = pool.call("fuzz_children:follow", kind, source, strict, number, seconds=ENOUGH)
    except ChildError as error:
        pytest.fail(f"{error} {kind} {source!r}")
    return answer


def test_schemas(pool: ChildPool, seconds: float) -> None:
    def check(schema: dict[str, Any], number: int) -> None:
        source = json.dumps(schema)
        follow(pool, "json_schema", source, number, strict=False)
        answer = follow(pool, "json_schema", source, number)
        if answer is not None:
            json.loads(answer)

    assert until_it_is_over(seconds, DOCUMENTS, check)


@pytest.mark.parametrize("kind", ["lark", "gbnf", "large"])
def test_grammars(pool: ChildPool, seconds: float, kind: str) -> None:
    drawn = {
        "lark": grammars(LARK_WORDS, "start: "),
        "gbnf": grammars(GBNF_WORDS, "root ::= "),
        "large": LARGE,
    }
    assert until_it_is_over(
        seconds / 3, drawn[kind], lambda text, number: check_text(pool, "grammar", text, number)
    )


def test_regexes(pool: ChildPool, seconds: float) -> None:
    assert until_it_is_over(seconds, REGEXES, lambda text, number: check_text(pool, "regex", text, number))


def check_text(pool: ChildPool, kind: ConstraintKind, text: str, number: int) -> None:
    if text:
        follow(pool, kind, text, number)


def test_answers_fit_their_schemas(pool: ChildPool, seconds: float) -> None:
    """What `strict` promises: nothing of a schema that was taken is left out."""

    def check(schema: dict[str, Any], number: int) -> None:
        answer = follow(pool, "json_schema", json.dumps(schema), number)
        if answer is None:
            return
        value = json.loads(answer)
        found = next(Draft202012Validator(schema).iter_errors(value), None)
        assert found is None, f"{answer!r} under {json.dumps(schema)}: {found}"

    assert until_it_is_over(seconds, TRUSTED, check)


def trusted_of(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several, named = st.lists(inner, min_size=1, max_size=3), st.dictionaries(NAMES, inner, max_size=3)
    return st.one_of(
        st.fixed_dictionaries({"anyOf": several}),
        st.fixed_dictionaries({"oneOf": several}),
        st.fixed_dictionaries(
            {"type": st.just("object"), "properties": named},
            optional={"required": st.lists(NAMES, max_size=2), "additionalProperties": inner},
        ),
        st.fixed_dictionaries(
            {"type": st.just("object")},
            optional={
                "propertyNames": st.fixed_dictionaries({"enum": st.lists(NAMES, max_size=3)}),
                "additionalProperties": inner,
                "unevaluatedProperties": inner,
            },
        ),
        st.fixed_dictionaries(
            {"type": st.just("array"), "items": inner},
            optional={
                "minItems": st.integers(0, 2),
                "maxItems": st.integers(1, 3),
                "uniqueItems": st.booleans(),
            },
        ),
    )


LEAVES = st.one_of(
    st.sampled_from([True, False, {"type": "boolean"}, {"type": "null"}, {"const": "a"}]),
    st.fixed_dictionaries({"type": st.just("integer")}, optional={"minimum": NUMBERS, "maximum": NUMBERS}),
    st.fixed_dictionaries({"type": st.just("string")}, optional={"maxLength": st.integers(0, 4)}),
    st.fixed_dictionaries({"enum": st.lists(st.integers() | st.text(max_size=3), min_size=1, max_size=3)}),
)
TRUSTED = st.recursive(LEAVES, trusted_of, max_leaves=8).filter(lambda schema: isinstance(schema, dict))
