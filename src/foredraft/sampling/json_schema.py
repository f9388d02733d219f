"""Prepares a JSON schema for llguidance, which supports most of JSON Schema 2020-12 and refuses the rest.

Keywords without effect are removed: annotations, unknown formats, `propertyNames` of any string. Keywords
with an equivalent that llguidance supports are replaced. Keywords that it cannot enforce (`uniqueItems`,
`contains`, `not`, `if` …) are refused with `strict`, and otherwise removed and reported; so are bounds that
it would round.

A `default` is an annotation and has no effect.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from foredraft.errors import RequestError
from foredraft.sampling.schema_numbers import (
    check_multiples,
    check_values,
    is_bound_held,
    is_multiple_held,
    is_number,
    shown,
)
from foredraft.sampling.schema_overlap import are_disjoint
from foredraft.sampling.schema_places import (
    BY_NAME,
    MANY,
    MAX_LEVELS,
    ONE,
    Schema,
    check_levels,
    steps,
    target,
    too_deep,
)

logger = logging.getLogger(__name__)
_told: set[str] = set()

MAX_SCHEMAS = 20_000
"""Maximum schemas within one, counting repeated visits."""

FORMATS = frozenset(
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown"]
)
"""Formats that llguidance supports."""

# fmt: off
_ANNOTATIONS = frozenset([
    "title", "description", "default", "deprecated", "readOnly", "writeOnly", "examples", "$comment",
    "contentMediaType", "contentEncoding", "contentSchema",
    "$vocabulary", "$dynamicAnchor", "$recursiveAnchor",
    "example", "discriminator", "externalDocs", "nullable", "xml",  # OpenAPI
])
_AS_THEY_ARE = frozenset(["$id", "id", "$anchor", "type", "required", "x-guidance"])
_IN_PLACE = frozenset([
    "allOf", "anyOf", "oneOf", "$ref", "if", "then", "else", "dependentSchemas", "$dynamicRef",
])
# fmt: on
_DRAFTS = re.compile(r"https?://json-schema\.org/draft(/2020-12|/2019-09|-07|-06|-04)/schema#?")
_BEYOND_REGEX = re.compile(r"(?<!\\)(?:\\\\)*(?:\(\?<?[=!]|\\[1-9]|\\k<)")
"""Look-around and back-references."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A schema for llguidance, and its keywords that are not enforced."""

    schema: Schema
    unenforced: tuple[str, ...] = ()


def prepare(schema: Mapping[str, Any], *, strict: bool) -> Prepared:
    """Prepare a schema. Raises RequestError if it cannot be used; with `strict` also if a part of it cannot
    be enforced.
    """
    preparer = _Preparer(schema, strict=strict)
    try:
        prepared = preparer.whole()
    except (TypeError, AttributeError, ValueError, ArithmeticError, RecursionError) as error:
        raise RequestError(
            f"The JSON schema cannot be used: a keyword has a value of the wrong type ({str(error)[:100]}).",
            hint="For example, `properties` must be an object and `required` a list of names.",
        ) from None
    _tell(preparer.unenforced)
    return Prepared(prepared, tuple(sorted(preparer.unenforced)))


def _tell(keywords: set[str]) -> None:
    """Log keywords that are not enforced, each once."""
    new = keywords - _told
    if new:
        _told.update(new)
        logger.warning(
            'Keywords of a JSON schema are not enforced: %s. With "strict": true the schema '
            "would be refused.",
            ", ".join(sorted(new)),
        )


@dataclass(frozen=True, slots=True)
class _Keyword:
    """A keyword in its place: its value, its schema, and the prepared version of that schema."""

    name: str
    value: Any
    schema: Mapping[str, Any]
    prepared: Schema
    path: tuple[str, ...]

    def keep(self, value: Any) -> None:
        self.prepared[self.name] = value


class _Preparer:
    """Prepares one document."""

    def __init__(self, root: Mapping[str, Any], *, strict: bool) -> None:
        self._root = root
        self._strict = strict
        self._pointers: set[str] = set()
        self._multiples: set[float] = set()
        self._left = MAX_SCHEMAS
        self.unenforced: set[str] = set()

    def whole(self) -> Schema:
        """The document, prepared. A value of the wrong type may raise any exception."""
        prepared = self.schema(self._root, ())
        if not isinstance(prepared, dict):  # {"not": {}}
            prepared = {"enum": []}
        self._finish(prepared)
        check_levels(prepared)
        return prepared

    def schema(self, schema: object, path: tuple[str, ...]) -> Any:
        """Prepare a schema of the document."""
        if len(path) > 2 * MAX_LEVELS:
            raise too_deep()
        self._left -= 1
        if self._left < 0:
            raise RequestError(
                f"The JSON schema cannot be used: it has more than {MAX_SCHEMAS} schemas within it.",
                hint="Use a smaller schema.",
            )
        if not isinstance(schema, Mapping):
            return schema  # true and false; llguidance refuses others
        if schema.get("not", False) in (True, {}):
            return False
        prepared: Schema = {}
        for name, value in schema.items():
            if name not in _ANNOTATIONS:
                self._keyword(_Keyword(name, value, schema, prepared, (*path, name)))
        return prepared

    def _keyword(self, at: _Keyword) -> None:
        special = _SPECIAL.get(at.name)
        if special is not None:
            special(self, at)
        elif at.name in BY_NAME and isinstance(at.value, Mapping):
            at.keep({name: self.schema(part, (*at.path, name)) for name, part in at.value.items()})
        elif at.name in MANY and isinstance(at.value, list | tuple):
            at.keep(self._several(at))
        elif at.name in ONE:
            at.keep(self.schema(at.value, at.path))
        elif at.name in _AS_THEY_ARE or (isinstance(at.value, Mapping) and len(at.path) == 1):
            at.keep(at.value)  # an unknown keyword may be the target of a `$ref`

    def _several(self, at: _Keyword) -> list[Any]:
        return [self.schema(part, (*at.path, str(i))) for i, part in enumerate(at.value)]

    def _without(self, at: _Keyword, why: str = "it cannot be enforced") -> None:
        """Remove a keyword that has an effect. Raises RequestError if nothing may be removed."""
        if self._strict:
            raise RequestError(
                f"The JSON schema cannot be used: /{'/'.join(at.path)[-100:]}: {why}.",
                hint='Remove it, or set "strict" to false to ignore what cannot be enforced.',
            )
        self.unenforced.add(at.name)

    def _finish(self, prepared: Schema) -> None:
        """Checks at the end. The target of a `$ref` may be outside of the keywords with schemas, as in
        `#/components/schemas/…`.
        """
        done: set[str] = set()
        while waiting := self._pointers - done:
            done |= waiting
            for pointer in sorted(waiting):
                place = steps(pointer)
                if place[0] not in {*BY_NAME, *MANY, *ONE}:
                    self._prepare_at(prepared, place)
        check_multiples(self._multiples)

    def _prepare_at(self, place: Schema, path: list[str]) -> None:
        for step in path[:-1]:
            if not isinstance(place.get(step), Mapping):
                return
            place[step] = dict(place[step])
            place = place[step]
        if path[-1] in place:
            place[path[-1]] = self.schema(place[path[-1]], tuple(path))

    def _resolved(self, schema: Any) -> Any:
        """The schema to which a `$ref` of this document refers."""
        for _ in range(MAX_LEVELS):
            pointer = schema.get("$ref") if isinstance(schema, Mapping) else None
            if not isinstance(pointer, str) or not pointer.startswith("#/"):
                break
            schema = target(self._root, pointer)
        return schema

    # --- single keywords -----------------------------------------------------------------------------

    def _schema_version(self, at: _Keyword) -> None:
        if isinstance(at.value, str) and _DRAFTS.fullmatch(at.value):
            at.keep(at.value)

    def _ref(self, at: _Keyword) -> None:
        at.keep(at.value)
        if isinstance(at.value, str) and at.value.startswith("#/"):
            self._pointers.add(at.value)

    def _format(self, at: _Keyword) -> None:
        if isinstance(at.value, str) and at.value in FORMATS:
            at.keep(at.value)

    def _pattern(self, at: _Keyword) -> None:
        if isinstance(at.value, str) and _BEYOND_REGEX.search(at.value):
            self._without(at, "look-around and back-references cannot be enforced")
        else:
            at.keep(at.value)

    def _value(self, at: _Keyword) -> None:
        check_values(at.value, at.name)
        at.keep(at.value)

    def _count(self, at: _Keyword) -> None:
        whole = isinstance(at.value, float) and at.value.is_integer()
        at.keep(int(at.value) if whole else at.value)

    def _bound(self, at: _Keyword) -> None:
        if is_bound_held(at.name, at.value, at.schema):
            at.keep(at.value)
        else:
            self._without(at, f"{shown(at.value)} cannot be represented exactly")

    def _multiple_of(self, at: _Keyword) -> None:
        if not is_number(at.value) or not at.value > 0:
            raise RequestError(
                f"The JSON schema cannot be used: multipleOf is {str(at.value)[:40]}.",
                hint="It must be a number above 0.",
            )
        if is_multiple_held(at.value):
            at.keep(at.value)
            self._multiples.add(at.value)
        else:
            self._without(at, f"{shown(at.value)} cannot be represented exactly")

    def _unique_items(self, at: _Keyword) -> None:
        most = at.schema.get("maxItems")
        if at.value and not (is_number(most) and most <= 1):
            self._without(at)

    def _contains(self, at: _Keyword) -> None:
        if at.schema.get("minContains", 1) != 0 or "maxContains" in at.schema:
            self._without(at)

    def _part_of_another(self, at: _Keyword) -> None:
        """A keyword that belongs to another, as `then` to `if`."""

    def _not(self, at: _Keyword) -> None:
        if at.value is not False:
            self._without(at)

    def _if(self, at: _Keyword) -> None:
        if {"then", "else"} & at.schema.keys():
            self._without(at)

    def _unless_empty(self, at: _Keyword) -> None:
        if at.value:
            self._without(at)

    def _unevaluated(self, at: _Keyword) -> None:
        """If nothing beside it evaluates, it is equivalent to `additionalProperties` or `items`."""
        same = "additionalProperties" if at.name == "unevaluatedProperties" else "items"
        if at.value in (True, {}) or same in at.schema or same in at.prepared:
            return
        if _IN_PLACE & at.schema.keys():
            self._without(at)
        else:
            at.prepared[same] = self.schema(at.value, at.path)

    def _one_of(self, at: _Keyword) -> None:
        """Equivalent to `anyOf` if no two alternatives can hold at once, or if not `strict`."""
        disjoint = isinstance(at.value, list) and are_disjoint(at.value, self._resolved)
        if not isinstance(at.value, list) or (self._strict and not disjoint):
            at.keep(self._several(at) if isinstance(at.value, list) else at.value)
            return  # llguidance may find that they are disjoint, or refuses them
        if not disjoint:
            self.unenforced.add("oneOf")
        if "anyOf" in at.schema:
            at.prepared.setdefault("allOf", []).append({"anyOf": self._several(at)})
        else:
            at.prepared["anyOf"] = self._several(at)

    def _all_of(self, at: _Keyword) -> None:
        parts = self._several(at) if isinstance(at.value, list) else at.value
        at.keep([*parts, *at.prepared["allOf"]] if "allOf" in at.prepared else parts)

    def _property_names(self, at: _Keyword) -> None:
        """A list of names, or a pattern for names, determines the possible properties."""
        given = {} if at.value is True else self._resolved(at.value)
        if not isinstance(given, Mapping) or given.get("type", "string") != "string":
            self._without(at)
            return
        said = given.keys() - _ANNOTATIONS - {"type"}
        names = [given["const"]] if "const" in given else given.get("enum")
        free = not {"properties", "patternProperties"} & at.schema.keys()
        if not said:
            return
        if free and said <= {"const", "enum"} and isinstance(names, list):
            values = self._other_values(at)
            at.prepared["properties"] = {name: values for name in names if isinstance(name, str)}
        elif free and said == {"pattern"} and not _BEYOND_REGEX.search(str(given["pattern"])):
            at.prepared["patternProperties"] = {given["pattern"]: self._other_values(at)}
        else:
            self._without(at)
            return
        at.prepared["additionalProperties"] = False

    def _other_values(self, at: _Keyword) -> Any:
        """The schema of properties without one of their own. It is not prepared twice, which would double
        with each level.
        """
        if "additionalProperties" in at.prepared:
            return at.prepared["additionalProperties"]
        others = at.schema.get("unevaluatedProperties", True)
        return self.schema(at.schema.get("additionalProperties", others), at.path)

    def _additional_properties(self, at: _Keyword) -> None:
        if at.name not in at.prepared:  # `propertyNames` may have set it
            at.keep(self.schema(at.value, at.path))

    def _property_count(self, at: _Keyword) -> None:
        """Counts of properties: llguidance supports them if all named properties are required, or if one must
        exist.
        """
        required = at.schema.get("required") or []
        optional = [name for name in at.schema.get("properties") or {} if name not in required]
        if not optional or not is_number(at.value):
            self._count(at)
            return
        least = max(0, at.schema.get("minProperties", 0) - len(required))
        most = max(0, at.schema.get("maxProperties", len(required) + 1) - len(required))
        closed = at.schema.get("additionalProperties") is False and "patternProperties" not in at.schema
        if least <= 1 and most == 1 and closed:
            self._count(at)
        elif least > 0 or "maxProperties" in at.schema:
            self._without(at)


_SPECIAL: dict[str, Callable[[_Preparer, _Keyword], None]] = {
    "$schema": _Preparer._schema_version,
    "$ref": _Preparer._ref,
    "$dynamicRef": _Preparer._unless_empty,
    "$recursiveRef": _Preparer._unless_empty,
    "const": _Preparer._value,
    "enum": _Preparer._value,
    "format": _Preparer._format,
    "pattern": _Preparer._pattern,
    **dict.fromkeys(["minLength", "maxLength", "minItems", "maxItems"], _Preparer._count),
    **dict.fromkeys(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"], _Preparer._bound),
    "multipleOf": _Preparer._multiple_of,
    "uniqueItems": _Preparer._unique_items,
    "contains": _Preparer._contains,
    "minContains": _Preparer._part_of_another,
    "maxContains": _Preparer._part_of_another,
    "unevaluatedItems": _Preparer._unevaluated,
    "unevaluatedProperties": _Preparer._unevaluated,
    "propertyNames": _Preparer._property_names,
    "additionalProperties": _Preparer._additional_properties,
    "minProperties": _Preparer._property_count,
    "maxProperties": _Preparer._property_count,
    "dependentRequired": _Preparer._unless_empty,
    "dependentSchemas": _Preparer._unless_empty,
    "dependencies": _Preparer._unless_empty,
    "allOf": _Preparer._all_of,
    "oneOf": _Preparer._one_of,
    "not": _Preparer._not,
    "if": _Preparer._if,
    "then": _Preparer._part_of_another,
    "else": _Preparer._part_of_another,
}
