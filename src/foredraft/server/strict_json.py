"""Parsing of request bodies: limited in size beforehand, and off the event loop if large.

A repeated key in an object is an error: JSON parsers would silently use the last. So is a body with more
values than any request needs: parsing takes far longer than receiving it, and blocks everything else.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias, TypeVar

from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError

from foredraft.errors import RequestError
from foredraft.server.openai.schemas import Body
from foredraft.server.request_log import current

MOST_VALUES = 1 << 18
"""Maximum values in one body, including nested ones: 262,144, enough for a long prompt of token ids."""

LARGE = 1 << 13
"""Size in bytes from which a body is parsed on another thread; a smaller one takes a millisecond or two."""

_thread = ThreadPoolExecutor(1, "foredraft-body")
"""One thread: large bodies are parsed one after another, on one processor."""


class RepeatedKeyError(ValueError):
    """An object in a body has the key `key` more than once."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object from its members. Raises RepeatedKeyError."""
    made = dict(pairs)
    if len(made) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise RepeatedKeyError(key)
            seen.add(key)
    return made


def check_values(text: str, most: int = MOST_VALUES) -> None:
    """Raises RequestError for JSON with more than `most` values, keys included, without parsing it: outside
    of strings a comma or colon separates any two. Takes about 10 ms for 8 MB.
    """
    if text.count(",") + text.count(":") < most:
        return
    bare = text.replace("\\\\", "").replace('\\"', "")
    if bare.count('"') < 2 * most:  # otherwise it has too many strings
        outside = "".join(bare.split('"')[::2])
        if outside.count(",") + outside.count(":") < most:
            return
    raise RequestError(
        f"The body has more than {most} values, the maximum for one request.",
        hint="Send prompts as text instead of token ids, or in several requests.",
    )


def parse(body: bytes) -> Any:
    """The value of a JSON text. Raises RequestError, RepeatedKeyError, and what `json.loads` raises."""
    text = body.decode(json.detect_encoding(body), "surrogatepass")
    check_values(text)
    return json.loads(text, object_pairs_hook=_unique)


class _StrictRequest(Request):
    """A request whose body is read once: parsed within the limits, and validated as its route's model."""

    takes: TypeAdapter[Any] | None = None
    _ignored: tuple[str, ...] = ()

    async def json(self) -> Any:
        """The body, converted by `takes`. Raises what `parse` raises, and RequestValidationError."""
        if not hasattr(self, "_read"):
            body = await self.body()
            if len(body) < LARGE:
                self._read = self._of(body)
            else:
                self._read = await asyncio.get_running_loop().run_in_executor(_thread, self._of, body)
            current().ignored = self._ignored
        return self._read

    def _of(self, body: bytes) -> Any:
        given = parse(body)
        if self.takes is None:
            return given
        try:
            made = self.takes.validate_python(
                given, from_attributes=True, context=set()
            )  # see `unknown_fields`
            if isinstance(made, Body):  # each name once, even if many messages have it
                self._ignored = tuple(dict.fromkeys(made.passed_over()))
            return made
        except ValidationError as error:
            complaints = error.errors(include_url=False)
            located = [{**each, "loc": ("body", *each["loc"])} for each in complaints]
            raise RequestValidationError(located, body=given) from None


Check: TypeAlias = Callable[[Request], Coroutine[Any, Any, Any]]
_first: set[object] = set()
Marked = TypeVar("Marked", bound=Check)


def before_body(check: Marked) -> Marked:
    """Mark a dependency to be called before the body is read, too: who may not send it learns nothing else,
    and costs nothing else.
    """
    _first.add(check)
    return check


class StrictRoute(APIRoute):
    """A route that parses its body strictly."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's handler, with a strict request."""
        handle = super().get_route_handler()
        field = self.body_field
        kind: Any = None if field is None else field.field_info.annotation
        takes = None if field is None else TypeAdapter(kind)
        calls: list[Any] = [each.call for each in self.dependant.dependencies]
        first: list[Check] = [call for call in calls if call in _first]

        async def strictly(request: Request) -> Response:
            made = _StrictRequest(request.scope, request.receive)
            made.takes = takes
            for check in first:
                await check(made)
            return await handle(made)

        return strictly


def strict_router() -> APIRouter:
    """A router of strict routes."""
    return APIRouter(route_class=StrictRoute)
