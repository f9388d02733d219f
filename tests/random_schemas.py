"""Random JSON schemas that llguidance follows to the letter, and whether a server's answers fit them.

Every value has an end: strings, arrays and integers are bounded, so that a model that writes noise gets to
the end of each. What the library only approximates is left out: formats that no regular expression can say
(dates, because of the 29th of February), `number` (its digits go on for ever), `oneOf`, `not`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

Schema = dict[str, Any]
_SHOWN = 1500
"""Characters of a schema that the prompt shows; the whole of it is followed all the same."""

DEPTH = 3
"""Levels of objects and arrays, references included."""

_NAMES = ("id", "name", "größe", "tags", "a b", "in-stock", "日付", "x_1", 'say "hi"', "e\tf", "ünï", "null")
_WORDS: tuple[Any, ...] = (
    "small",
    "large",
    "naïve",
    "",
    'a "quote"',
    "line\nbreak",
    1,
    -7,
    0,
    True,
    None,
    2.5,
)
_PATTERNS = (
    r"^[a-z]{2,6}$",
    r"^[A-Z]{3}-[0-9]{2,4}$",
    r"^(red|green|blue)?$",
    r"^\d{1,3}(\.\d{1,3}){2}$",
    r"^[^\s]{1,5}$",
    r"^#[0-9a-fA-F]{6}$",
    r"^(ab|c){1,4}é?$",
)
_FORMATS = ("uuid", "ipv4", "ipv6")


def random_schema(seed: int) -> Schema:
    """The schema of a number: always the same one. Its root is an object, as OpenAI's API wants it."""
    maker = _Maker(random.Random(seed))
    schema = maker.object(DEPTH)
    return {**schema, "$defs": maker.definitions} if maker.definitions else schema


class _Maker:
    """Makes the parts of one schema, and keeps what `$ref` leads to."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.definitions: dict[str, Schema] = {}

    def value(self, depth: int) -> Schema:
        """Any kind of schema; nesting ends at depth 0."""
        flat: list[Callable[[], Schema]] = [
            self._string,
            self._string,
            self._integer,
            self._enum,
            self._const,
            lambda: {"type": "boolean"},
            lambda: {"type": "null"},
        ]
        nested: list[Callable[[], Schema]] = [
            lambda: self.object(depth),
            lambda: self._array(depth),
            lambda: self._any_of(depth),
            lambda: self._reference(depth),
        ]
        return self._rng.choice(flat + nested if depth > 0 else flat)()

    def object(self, depth: int) -> Schema:
        """An object of 1 to 4 properties, each required or not, and no others."""
        names = self._rng.sample(_NAMES, self._rng.randint(1, 4))
        return {
            "type": "object",
            "properties": {name: self.value(depth - 1) for name in names},
            "required": [name for name in names if self._rng.random() < 0.7],
            "additionalProperties": False,
        }

    def _array(self, depth: int) -> Schema:
        least = self._rng.randint(0, 2)
        return {
            "type": "array",
            "items": self.value(depth - 1),
            "minItems": least,
            "maxItems": least + self._rng.randint(0, 2),
        }

    def _any_of(self, depth: int) -> Schema:
        return {"anyOf": [self.value(depth - 1) for _ in range(self._rng.randint(2, 3))]}

    def _reference(self, depth: int) -> Schema:
        if not self.definitions or self._rng.random() < 0.5:
            name = f"part{len(self.definitions)}"
            self.definitions[name] = {}  # a place first: what it holds may define more
            self.definitions[name] = self.value(min(depth - 1, 1))
        # Those that are not there yet would lead in a circle.
        made = [name for name, schema in self.definitions.items() if schema]
        return {"$ref": f"#/$defs/{self._rng.choice(made)}"} if made else self._string()

    def _string(self) -> Schema:
        kind = self._rng.randrange(4)
        if kind == 0:
            return {"type": "string", "pattern": self._rng.choice(_PATTERNS)}
        if kind == 1:
            return {"type": "string", "format": self._rng.choice(_FORMATS)}
        least = self._rng.randint(0, 3)
        return {"type": "string", "minLength": least, "maxLength": least + self._rng.randint(0, 8)}

    def _integer(self) -> Schema:
        low = self._rng.randint(-1000, 1000)
        high = low + self._rng.choice((0, 5, 40, 100_000))
        if self._rng.random() < 0.3:
            return {"type": "integer", "exclusiveMinimum": low - 1, "exclusiveMaximum": high + 1}
        return {"type": "integer", "minimum": low, "maximum": high}

    def _enum(self) -> Schema:
        return {"enum": self._rng.sample(_WORDS, self._rng.randint(1, 4))}

    def _const(self) -> Schema:
        return {"const": self._rng.choice((*_WORDS, ["a", 1], {"k": [None, "v"]}))}


# --- asking a server -----------------------------------------------------------------------------------


def ask(client: Any, model: str, schema: Schema, **options: Any) -> tuple[str, str, int]:
    """(text, finish reason, accepted draft tokens) of an answer of OpenAI's client, `stream`ed or not."""
    form = {"type": "json_schema", "json_schema": {"name": "thing", "schema": schema, "strict": True}}
    shown = json.dumps(schema, ensure_ascii=False)[:_SHOWN]
    prompt = f"Make up an example of a JSON object of this schema.\n{shown}"
    given = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "response_format": form,
        "temperature": 0,
        "max_tokens": 1500,
        **options,
    }
    if not given.get("stream"):
        answer = client.chat.completions.create(**given)
        choice = answer.choices[0]
        return choice.message.content or "", choice.finish_reason, answer.timings["draft_n_accepted"]
    text, reason, accepted = "", "", 0
    for chunk in client.chat.completions.create(**given, stream_options={"include_usage": True}):
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reason = choice.finish_reason or reason
        if not chunk.choices:
            accepted = chunk.timings["draft_n_accepted"]
    return text, reason, accepted


def complaint(text: str, reason: str, schema: Schema) -> str | None:
    """What is wrong with an answer; None: it fits the schema."""
    from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

    if reason != "stop":
        return f"it ended with {reason!r}: {text[-80:]!r}"
    try:
        value = json.loads(text)
    except ValueError as error:
        return f"no JSON ({error}): {text[:200]!r}"
    checker = Draft202012Validator.FORMAT_CHECKER
    found = next(Draft202012Validator(schema, format_checker=checker).iter_errors(value), None)
    return None if found is None else f"{found.json_path}: {found.message}"
