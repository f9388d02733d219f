"""The OpenAPI document: FastAPI's, with our errors and limits added."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from foredraft.server.anthropic.errors import is_anthropic
from foredraft.server.settings import Limits


def documented(describe_app: Callable[[], dict[str, Any]], current: Callable[[], Limits]) -> dict[str, Any]:
    """The OpenAPI document of an app, with the errors that every operation can have, and the current limits.
    FastAPI's own validation errors are removed: here they have the form of all other errors.
    """
    document = describe_app()
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas |= _SCHEMAS
    document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{}, {"key": []}]  # a server may run without keys
    for schema in schemas.values():
        _bound(schema.get("properties", {}), current())
    for path, operations in document["paths"].items():
        name = "AnthropicError" if is_anthropic(path) else "Error"
        content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}
        for operation in operations.values():
            operation["responses"].pop("422", None)
            for statuses, description in _FAILURES.items():
                operation["responses"][statuses] = {"description": description, "content": content}
    return document


def _bound(fields: dict[str, Any], limits: Limits) -> None:
    """Write the limits into the affected fields of a body."""
    for name, kind, key, most in (
        ("n", "integer", "maximum", limits.max_n),
        ("stop", "array", "maxItems", limits.max_stop),
        ("stop_sequences", "array", "maxItems", limits.max_stop),
        ("logit_bias", "object", "maxProperties", limits.max_logit_bias),
    ):
        field = fields.get(name, {})
        for one in field.get("anyOf", [field]):
            if one.get("type") == kind:
                one[key] = most


_FAILURES = {
    "4XX": "The request is invalid. `message` explains why.",
    "5XX": "The server cannot answer, or not at the moment. `message` explains why.",
}


def _object(**properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


_TEXT = {"type": "string"}
_TEXT_OR_NULL = {"type": ["string", "null"]}
_SCHEMAS: dict[str, Any] = {
    "Error": _object(error=_object(message=_TEXT, type=_TEXT, param=_TEXT_OR_NULL, code=_TEXT_OR_NULL)),
    "AnthropicError": _object(type={"const": "error"}, error=_object(type=_TEXT, message=_TEXT)),
}
