"""Bodies as JSON, in which an object that has a key twice is an error: the last would win in silence."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from fastapi.routing import APIRoute


class RepeatedKeyError(ValueError):
    """An object in a body has the key `key` more than once."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of its keys and values. Raises RepeatedKeyError."""
    made = dict(pairs)
    if len(made) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise RepeatedKeyError(key)
            seen.add(key)
    return made


class _StrictRequest(Request):
    """A request that reads its body once, in one go with looking at its keys."""

    async def json(self) -> Any:
        """The body. Raises RepeatedKeyError, and what `json.loads` raises."""
        if not hasattr(self, "_strict"):
            self._strict = json.loads(await self.body(), object_pairs_hook=_unique)
        return self._strict


class StrictRoute(APIRoute):
    """A route whose body is read so."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's own, with another request."""
        handle = super().get_route_handler()

        async def strictly(request: Request) -> Response:
            return await handle(_StrictRequest(request.scope, request.receive))

        return strictly


def strict_router() -> APIRouter:
    """A router of such routes."""
    return APIRouter(route_class=StrictRoute)
