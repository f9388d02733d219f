"""What the front and a replica send each other: a request, and the parts of its reply."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from starlette.types import Message

from foredraft.server.auth import Caller


@dataclass(frozen=True, slots=True)
class Forwarded:
    """An HTTP request that the front has read and checked. `path` is decoded and without a slash at its end,
    `query` as it came; `headers` have lower-case names. `caller`: who sends it, by the front's keys.
    `beginnings`: hashes of each beginning of its conversation, shortest first, for the router; empty where
    there is none. `at`: Unix time when it came to the front. `front`: the transport's name of the front, by
    which a replica finds out whether it is still there.
    """

    method: str
    path: str
    query: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    caller: Caller
    beginnings: tuple[int, ...] = ()
    at: float | None = None
    front: str = ""


@dataclass(frozen=True, slots=True)
class Grow:
    """The request asks for `more` further answers at once, which count as the key's running ones."""

    more: int


@dataclass(frozen=True, slots=True)
class Facts:
    """What the replica noted of the request (`request_log.Entry`), for the front's log. The last part of
    every reply: one without it was cut off.
    """

    model: str | None
    ignored: tuple[str, ...]
    answers: tuple[Mapping[str, Any], ...]
    each: int
    code: str | None
    error: str | None
    measured: Mapping[str, Any] = field(default_factory=dict)


Part: TypeAlias = Message | Grow | Facts
"""A part of a reply: a message of ASGI, `http.response.start` or `http.response.body`, or what only the front
has to know.
"""

Parts: TypeAlias = tuple[Part, ...]
"""Those that were there together. The first is empty: the replica has the request."""
