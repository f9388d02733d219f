"""Constraints as llama.cpp's server and vLLM name them, converted to our fields and OpenAI's."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from foredraft.server.unknown_fields import NOTHING

PLACES = {
    "guided_json": "json",
    "json_schema": "json",
    "guided_regex": "regex",
    "guided_grammar": "grammar",
    "guided_choice": "choice",
}
"""Our fields, by their names in vLLM's `structured_outputs`."""

FORMS = ("json", "json_object", "regex", "grammar", "choice")
"""Known fields of vLLM's `structured_outputs`."""

HOW = ("backend", "_backend", "disable_fallback")
"""Its fields that only configure how vLLM enforces a constraint: they are ignored."""


def with_forms(given: object) -> object:
    """The body with other servers' constraints moved to `response_format`, `regex` and `grammar`.

    Raises ValueError for an invalid constraint, and for two of the same kind.
    """
    if not isinstance(given, dict) or not {"structured_outputs", *PLACES} & set(given):
        return given
    outputs = given.get("structured_outputs") or {}
    if not isinstance(outputs, Mapping):
        raise ValueError("structured_outputs must be an object")
    wanted = {name: value for name, value in outputs.items() if _is_known(name, value)}
    wanted |= {PLACES[name]: given[name] for name in PLACES if given.get(name) is not None}
    body = {name: value for name, value in given.items() if name not in ("structured_outputs", *PLACES)}
    for kind, value in wanted.items():
        name, form = _form(kind, value)
        if form is not None and body.get(name) is not None:
            raise ValueError(f"{name} and the same constraint under another name cannot be combined")
        body[name] = form if form is not None else body.get(name)
    return body


def _is_known(name: str, value: object) -> bool:
    """Whether a field of `structured_outputs` has an effect. Raises ValueError for an unsupported field."""
    if name not in (*FORMS, *HOW) and value not in NOTHING and value is not None:
        raise ValueError(
            f"structured_outputs does not support {name[:80]!r} here; use one of {', '.join(FORMS)}"
        )
    return value is not None and name in (*FORMS, *HOW)


def _form(kind: str, value: Any) -> tuple[str, Any]:
    """(our field, its value). Fields in `HOW` keep their names and are ignored."""
    if kind == "json":
        try:
            schema = json.loads(value) if isinstance(value, str) else value
        except (ValueError, RecursionError):
            raise ValueError("json must be a JSON schema") from None
        return "response_format", {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    if kind == "json_object":
        return "response_format", {"type": "json_object"} if value else None
    if kind == "choice":
        if not isinstance(value, list) or not value or not all(isinstance(one, str) for one in value):
            raise ValueError("a choice is a list of strings")
        return "regex", "|".join(map(re.escape, value))
    return kind, value
