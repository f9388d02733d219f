"""State of a request in the server: its caller, set by the gate, and the models it holds."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from fastapi import Request

from foredraft.errors import PermissionDeniedError
from foredraft.server.auth import Caller
from foredraft.server.pool import ModelPool, Served
from foredraft.server.rates import Permit
from foredraft.server.request_log import current

__all__ = ["Caller", "Visit", "caller_of", "visit_of"]


@dataclass(frozen=True, slots=True)
class Visit:
    """One request. The gate releases `held` after the last byte of the answer."""

    caller: Caller
    permit: Permit
    held: ExitStack

    async def lease(self, pool: ModelPool, name: str | None) -> Served:
        """A model, loaded if needed, that stays in memory until this request is over.

        Raises what `ModelPool.get` raises.
        """
        served = await pool.get(name)
        current().model = served.name
        self.held.enter_context(served.hold())
        return served

    def answers(self, count: int, priority: int = 0) -> None:
        """Count the request's answers, at this priority, as running answers of the key.

        Raises RateLimitError and PermissionDeniedError if the key does not allow them.
        """
        most = self.caller.max_priority
        if most is not None and priority > most:
            raise PermissionDeniedError(
                f"priority: {priority} exceeds this key's maximum of {most}.",
                hint="Leave it out, or raise the key's max_priority.",
            )
        self.permit.grow(count - 1)


def visit_of(request: Request) -> Visit:
    """The request's visit; the gate sets it for every request."""
    visit: Visit = request.state.visit
    return visit


def caller_of(request: Request) -> Caller:
    """The caller of a request."""
    return visit_of(request).caller
