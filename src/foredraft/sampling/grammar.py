"""Converts a `Constraint` to llguidance's input, after all checks that do not need llguidance."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from foredraft.errors import RequestError
from foredraft.sampling.gbnf import is_gbnf, lark_of
from foredraft.sampling.json_schema import prepare
from foredraft.sampling.trial import Form
from foredraft.types import Constraint

MAX_SOURCE = 100_000
"""Maximum characters of a schema, regex or grammar."""

MAX_CHAIN = 250
"""Maximum chain of rules that refer to each other. llguidance recurses through them, which on the stack of
its trial works for about 350.
"""

MAX_SCHEMAS = 300
"""Maximum JSON schemas in a grammar: more than there may be functions."""

WHAT = {"json_object": "JSON object", "json_schema": "JSON schema", "regex": "regex", "grammar": "grammar"}

_HINTS = {
    "regex": "Use the syntax of Rust's regex; it must match the whole answer.",
    "grammar": "Use llguidance's variant of Lark, with a rule `start`, or llama.cpp's GBNF with `root`.",
}
_MESSAGE_LENGTH = 300

# An unclosed item ends with its line, and nothing is tried twice ("*+"): otherwise a client's text of 60,000
# quotes would hold the interpreter for minutes.
_NOT_NAMES = re.compile(r'"(?:\\.|[^"\\\n])*+"?|//[^\n]*|#[^\n]*|/(?:\\.|[^/\\\n])++/?|%\w+|<[^>\n]*+>?')
_DEFINED = re.compile(
    r"(?m)^[ \t]*+[?!]*+([A-Za-z_][\w-]*+)(?:::\w++|\{[^}\n]*+\}|\[[^\]\n]*+\]|\.-?\d++)*+[ \t]*+:"
)
_NAME = re.compile(r"[A-Za-z_][\w-]*")


@dataclass(frozen=True, slots=True)
class Source:
    """A constraint in one of llguidance's input forms."""

    form: Form
    text: str


@lru_cache(maxsize=64)
def source_of(constraint: Constraint) -> Source:
    """Convert a constraint. Raises RequestError with the reason if it cannot be used."""
    check_source(constraint)
    if constraint.kind == "regex":
        return Source("regex", constraint.source)
    if constraint.kind == "json_object":
        return Source("json", '{"type": "object"}')
    if constraint.kind == "json_schema":
        prepared = prepare(json.loads(constraint.source), strict=constraint.strict)
        return Source("json", json.dumps(prepared.schema))
    gbnf = is_gbnf(constraint.source)
    lark = lark_of(constraint.source) if gbnf else _with_prepared_schemas(constraint.source.lstrip("\ufeff"))
    _check_chain(lark)
    return Source("lark", lark)


def check_source(constraint: Constraint) -> None:
    """Raises RequestError for faults that are quick to detect: the length, and invalid JSON."""
    what, source = WHAT[constraint.kind], constraint.source
    if constraint.kind == "json_object" and source:
        raise RequestError(
            "A constraint of kind 'json_object' does not take a source.",
            hint="Use Constraint('json_schema', …) for a schema.",
        )
    if constraint.kind != "json_object" and not source:
        raise RequestError(f"The {what} is empty.", hint="Remove the constraint to allow any text.")
    if len(source) > MAX_SOURCE:
        raise RequestError(
            f"The {what} has {len(source)} characters; at most {MAX_SOURCE} are allowed.",
            hint="Use a smaller constraint.",
        )
    if constraint.kind == "json_schema":
        try:
            schema = json.loads(source)
        except (ValueError, RecursionError) as error:
            raise unusable(constraint, f"it is not JSON ({error})") from None
        if not isinstance(schema, dict):
            raise unusable(constraint, "a schema must be a JSON object; {} allows any JSON")


def unusable(constraint: Constraint, reason: str, *, hint: str | None = None) -> RequestError:
    """The error for an unusable constraint."""
    shown = " ".join(reason.split())
    if len(shown) > _MESSAGE_LENGTH:
        shown = shown[:_MESSAGE_LENGTH] + " …"
    usual = _HINTS.get(constraint.kind, "llguidance's documentation lists the keywords that it supports.")
    return RequestError(f"The {WHAT[constraint.kind]} cannot be used: {shown}", hint=hint or usual)


def _with_prepared_schemas(lark: str) -> str:
    """A Lark grammar with its JSON schemas (`%json {…}`) prepared."""
    made: list[str] = []
    done = 0
    for number, found in enumerate(re.finditer(r"%json\s*", lark)):
        if number >= MAX_SCHEMAS:
            raise RequestError(
                f"The grammar cannot be used: it has more than {MAX_SCHEMAS} JSON schemas.",
                hint="Use fewer schemas, or one with `anyOf`.",
            )
        if found.start() < done:
            continue
        try:
            schema, end = json.JSONDecoder().raw_decode(lark, found.end())
        except (ValueError, RecursionError):
            continue  # llguidance reports the error
        if isinstance(schema, Mapping):
            made += [lark[done : found.end()], json.dumps(_prepared(schema))]
            done = end
    return "".join([*made, lark[done:]])


def _prepared(schema: Mapping[str, Any]) -> dict[str, Any]:
    return prepare(schema, strict=True).schema


def _check_chain(lark: str) -> None:
    """Raises RequestError for a chain of rules that is too long, following each rule once, as llguidance
    does.
    """
    used = _rules(lark)
    seen: set[str] = set()
    for first in used:
        if first in seen:
            continue
        seen.add(first)
        path = [iter(used[first])]
        while path:
            name = next(path[-1], None)
            if name is None:
                path.pop()
            elif name not in seen and name in used:
                seen.add(name)
                path.append(iter(used[name]))
            if len(path) > MAX_CHAIN:
                raise RequestError(
                    f"The grammar cannot be used: more than {MAX_CHAIN} of its rules form a chain.",
                    hint="Use fewer rules, or repetition in place of them.",
                )


def _rules(lark: str) -> dict[str, list[str]]:
    """The names in each rule, by the rule's name, the first referenced name first."""
    bare = _NOT_NAMES.sub(" ", lark)
    found = list(_DEFINED.finditer(bare))
    ends = [definition.start() for definition in found[1:]] + [len(bare)]
    rules = {
        definition[1]: _NAME.findall(bare, definition.end(), end)
        for definition, end in zip(found, ends, strict=False)
    }
    return {name: rules[name] for name in sorted(rules, key=lambda name: name != "start")}
