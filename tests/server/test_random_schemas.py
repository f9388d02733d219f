"""Answers of random schemas, by OpenAI's client: all of them fit, and drafting changes none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

import http_server
from foredraft.testing import FakeModel, markov_logits
from http_server import client_of, serving
from matrix import nightly
from random_schemas import ask, complaint, random_schema

COUNT = 200
BATCH = 50
KEYWORDS = {
    *("properties", "required", "additionalProperties", "minItems", "maxItems", "enum", "const", "anyOf"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "pattern", "minLength", "maxLength"),
    *("format", "$ref", "$defs"),
}


def noise() -> FakeModel:
    """A model that writes any bytes, whole characters or not, with structure in between."""
    return FakeModel(258, logits=markov_logits(258, order=2, scale=2.0), sequences=4, context_length=8192)


@pytest.fixture(scope="module")
def noisy() -> Iterator[openai.OpenAI]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(http_server, "writing_model", noise)
        with serving(speculate="grammar;suffix:min=1;recycle") as running, client_of(running) as client:
            yield client


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(first, marks=nightly) for first in range(BATCH, COUNT, BATCH))]
)
def test_every_answer_fits_its_schema(noisy: openai.OpenAI, first: int) -> None:
    """Half of them streamed, half at temperature 1. Without drafts the text is the same."""
    faults, drafted = [], 0
    for number in range(first, first + BATCH):
        schema = random_schema(number)
        options: dict[str, Any] = {"temperature": number // 2 % 2, "seed": number, "stream": number % 2 == 1}
        text, reason, accepted = ask(noisy, "fake", schema, **options)
        drafted += accepted
        plain, _, none = ask(noisy, "fake", schema, **options, extra_body={"speculate": "off"})
        wrong = complaint(text, reason, schema)
        if wrong or plain != text or none:
            faults.append(f"{number}: {wrong or f'{text!r} is {plain!r} without drafts'}")
    assert not faults, "\n".join(faults)
    assert drafted > BATCH


def test_the_schemas_are_valid_and_various() -> None:
    """Each keyword that is promised stands in a good share of them."""
    seen: Counter[str] = Counter()
    for number in range(COUNT):
        schema = random_schema(number)
        Draft202012Validator.check_schema(schema)
        seen.update(_keywords(schema))
    assert len({str(random_schema(number)) for number in range(COUNT)}) > 0.95 * COUNT
    for keyword in KEYWORDS:
        assert seen[keyword] >= COUNT // 20, keyword


def _keywords(schema: Any) -> set[str]:
    if isinstance(schema, list):
        return set().union(*map(_keywords, schema)) if schema else set()
    if not isinstance(schema, dict):
        return set()
    return set(schema).union(*map(_keywords, schema.values()))


@pytest.mark.parametrize(
    ("text", "reason", "wrong"),
    [
        ('{"a": 3}', "stop", None),
        ('{"a": 3}', "length", "ended"),
        ('{"a": 3', "stop", "no JSON"),
        ('{"a": 4}', "stop", "maximum"),
        ('{"a": 3, "b": 1}', "stop", "Additional"),
        ('{"a": 3, "u": "x"}', "stop", "uuid"),
    ],
)
def test_a_wrong_answer_is_noticed(text: str, reason: str, wrong: str | None) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer", "maximum": 3}, "u": {"type": "string", "format": "uuid"}},
        "additionalProperties": False,
    }
    found = complaint(text, reason, schema)
    assert found is None if wrong is None else wrong in str(found)
