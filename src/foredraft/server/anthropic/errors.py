"""Errors in the form of Anthropic's API: {"type": "error", "error": {"type", "message"}}."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PATH = "/v1/messages"
"""All paths that start with this one belong to Anthropic's API."""


def is_anthropic(path: str) -> bool:
    """Whether a path belongs to Anthropic's API, so that errors take its form."""
    return path == PATH or path.startswith(f"{PATH}/")


def anthropic_error(body: Mapping[str, Any], status: int) -> dict[str, Any]:
    """Convert an error from OpenAI's form to Anthropic's. Most types have the same name in both."""
    error = body["error"]
    kind = {"server_error": "api_error"}.get(error["type"], error["type"])
    if status == 413:
        kind = "request_too_large"
    return {"type": "error", "error": {"type": kind, "message": error["message"]}}
