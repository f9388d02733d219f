"""Complete answers as JSON without blocking: large ones are encoded in pieces, on another thread.

An answer with log-probabilities can have a million values. Encoding it at once would hold the interpreter
lock, and so block the event loop and the engine.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

from fastapi.responses import Response

FEW = 2000
"""Maximum values that are encoded at once, in about a millisecond."""

SLICE = 64
"""Maximum list items that are encoded at once, if they are small."""


async def json_response(value: Any) -> Response:
    """The response with this object as JSON."""
    if _is_small(value):
        content = "".join(pieces(value)).encode()
    else:
        content = await asyncio.to_thread(lambda: "".join(pieces(value)).encode())
    return Response(content, media_type="application/json")


def pieces(value: Any) -> Iterator[str]:
    """The JSON text of a value, in pieces that each take a millisecond or two."""
    if _is_small(value) or not isinstance(value, dict | list):
        yield _dumps(value)
    elif isinstance(value, dict):
        for number, (key, part) in enumerate(value.items()):
            yield f"{',' if number else '{'}{_dumps(str(key))}:"
            yield from pieces(part)
        yield "}"
    else:
        for first in range(0, len(value), SLICE):
            yield "," if first else "["
            items = value[first : first + SLICE]
            if _is_small(items):
                yield _dumps(items)[1:-1]
                continue
            for number, item in enumerate(items):
                if number:
                    yield ","
                yield from pieces(item)
        yield "]"


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _is_small(value: Any) -> bool:
    """Whether a value contains only a few values on all levels; stops counting early."""
    seen, left = 0, [value]
    while left:
        part = left.pop()
        if isinstance(part, dict | list):
            seen += len(part)
            if seen > FEW:
                return False
            left += part.values() if isinstance(part, dict) else part
    return True
