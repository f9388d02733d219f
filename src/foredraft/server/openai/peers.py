"""What llama.cpp's server and vLLM call an answer's form, brought into OpenAI's fields and ours."""

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
"""Fields of their own, by their names in vLLM's `structured_outputs`."""

FORMS = ("json", "json_object", "regex", "grammar", "choice")
"""What is known of vLLM's `structured_outputs`."""

HOW = ("backend", "_backend", "disable_fallback")
"""What in it only says how vLLM goes about it: that is ignored."""


def with_forms(given: object) -> object:
    """A body with `response_format`, `regex` and `grammar` for what other servers have for them.

    Raises ValueError for a form that is none, and for two.
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
            raise ValueError(f"{name} and a form of the same kind under another name cannot be combined")
        body[name] = form if form is not None else body.get(name)
    return body


def _is_known(name: str, value: object) -> bool:
    """Whether this part of `structured_outputs` says something. Raises ValueError for what is not here."""
    if name not in (*FORMS, *HOW) and value not in NOTHING and value is not None:
        raise ValueError(f"structured_outputs has no {name[:80]!r} here; send one of {', '.join(FORMS)}")
    return value is not None and name in (*FORMS, *HOW)


def _form(kind: str, value: Any) -> tuple[str, Any]:
    """(our field, its value). What is in `HOW` keeps its name, and is ignored."""
    if kind == "json":
        try:
            schema = json.loads(value) if isinstance(value, str) else value
        except (ValueError, RecursionError):
            raise ValueError("a form that is JSON is a JSON schema") from None
        return "response_format", {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    if kind == "json_object":
        return "response_format", {"type": "json_object"} if value else None
    if kind == "choice":
        if not isinstance(value, list) or not value or not all(isinstance(one, str) for one in value):
            raise ValueError("a choice is a list of strings")
        return "regex", "|".join(map(re.escape, value))
    return kind, value
