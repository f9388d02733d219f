"""Who sent a request, as the gate found out."""

from __future__ import annotations

from fastapi import Request

from foretoken.server.auth import Caller

__all__ = ["Caller", "caller_of"]


def caller_of(request: Request) -> Caller:
    """The caller. There is always one: no request gets past the gate without."""
    caller: Caller = request.state.caller
    return caller
