"""Driving one drafter by hand: a request that grows, and what is drafted for it."""

from __future__ import annotations

from foretoken.protocols import Drafter, RequestView
from foretoken.types import Draft, DraftLimit, Outcome


def start(drafter: Drafter, tokens: list[int], *, number: int = 1, scope: str = "") -> RequestView:
    request = RequestView(number, list(tokens), prompt_length=len(tokens), scope=scope)
    drafter.start(request)
    return request


def commit(drafter: Drafter, request: RequestView, tokens: list[int], *, kept: int | None = None) -> None:
    kept = len(request.tokens) if kept is None else kept
    request.tokens[kept:] = tokens
    drafter.observe(request, Outcome(kept, tuple(tokens)))


def draft(drafter: Drafter, request: RequestView, limit: int = 63) -> Draft | None:
    return drafter.draft([(request, DraftLimit(limit))])[0]
