"""A request on its way through the server: who sent it, as the gate found out, and what it holds."""

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
    """One request. `held` is let go by the gate, once the last byte of the answer is out."""

    caller: Caller
    permit: Permit
    held: ExitStack

    async def lease(self, pool: ModelPool, name: str | None) -> Served:
        """A model, loaded if need be, that stays in memory until this request is over.

        Raises what `ModelPool.get` raises.
        """
        served = await pool.get(name)
        current().model = served.name
        self.held.enter_context(served.hold())
        return served

    def answers(self, count: int, priority: int = 0) -> None:
        """The request wants so many answers, at this priority. Each counts as one that runs.

        Raises RateLimitError and PermissionDeniedError where the key does not allow it.
        """
        most = self.caller.max_priority
        if most is not None and priority > most:
            raise PermissionDeniedError(
                f"priority: {priority} is more than this key may ask for, which is {most}.",
                hint="Leave it out, or have the key's max_priority raised.",
            )
        self.permit.grow(count - 1)


def visit_of(request: Request) -> Visit:
    """There is always one: no request gets past the gate without."""
    visit: Visit = request.state.visit
    return visit


def caller_of(request: Request) -> Caller:
    """The caller of a request."""
    return visit_of(request).caller
