"""Errors as Anthropic's API gives them: {"type": "error", "error": {"type", "message"}}."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PATH = "/v1/messages"
"""Everything at and below this path is Anthropic's."""


def is_anthropic(path: str) -> bool:
    """Whether a path belongs to this API, so that its errors take this form."""
    return path == PATH or path.startswith(f"{PATH}/")


def anthropic_error(body: Mapping[str, Any], status: int) -> dict[str, Any]:
    """An error in OpenAI's form, brought into Anthropic's. The names of most types are the same in both."""
    error = body["error"]
    kind = {"server_error": "api_error"}.get(error["type"], error["type"])
    if status == 413:
        kind = "request_too_large"
    return {"type": "error", "error": {"type": kind, "message": error["message"]}}
