"""State of a request in the server: its caller, set by the gate, and the models it holds."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from fastapi import Request

from foredraft.embedding import ModelKind
from foredraft.errors import PermissionDeniedError
from foredraft.library.kinds import no_embedder, no_reranker, only_embeds
from foredraft.server.auth import Caller
from foredraft.server.embedding.served import ServedEmbedder
from foredraft.server.held import Held
from foredraft.server.pool import Lease, ModelPool, Served
from foredraft.server.rates import Growing
from foredraft.server.request_log import current

__all__ = ["Caller", "Visit", "caller_of", "generating", "visit_of"]


@dataclass(frozen=True, slots=True)
class Visit:
    """One request. The gate releases `held` after the last byte of the answer."""

    caller: Caller
    permit: Growing
    held: ExitStack

    async def lease(self, pool: ModelPool, name: str | None) -> Lease:
        """A model that generates, loaded if needed, that stays in memory until this request is over; with the
        adapter of that name.

        Raises what `ModelPool.get` raises, and UnsupportedModelError for an embedding model or reranker.
        """
        return pool.leased(generating(await self.hold(pool, name)), name)

    async def lease_embedder(self, pool: ModelPool, name: str | None, kind: ModelKind) -> ServedEmbedder:
        """The same of a model of this kind, which does not generate."""
        served = await self.hold(pool, name)
        if not isinstance(served, ServedEmbedder):
            asked = pool.leased(generating(served), name).name
            raise no_embedder(asked) if kind == "embedding" else no_reranker(asked)
        if served.traits.kind != kind:
            raise no_reranker(served.name) if kind == "reranker" else only_embeds(served.name, "reranker")
        return served

    async def hold(self, pool: ModelPool, name: str | None) -> Held:
        """The same of a model of any kind. Raises what `ModelPool.get` raises."""
        current().asked = name
        served = await pool.get(name)
        current().model = served.name
        self.held.enter_context(served.hold())
        return served

    async def answers(self, count: int, priority: int = 0, *, prompts: int = 1) -> None:
        """Count the request's answers, `count` to each prompt, as running answers of the key.

        Raises RateLimitError and PermissionDeniedError if the key does not allow them.
        """
        most = self.caller.max_priority
        if most is not None and priority > most:
            raise PermissionDeniedError(
                f"priority: {priority} exceeds this key's maximum of {most}.",
                hint="Leave it out, or raise the key's max_priority.",
            )
        current().each = count
        await self.permit.grow(count * prompts - 1)


def generating(served: Held) -> Served:
    """The same model if it generates. Raises UnsupportedModelError."""
    if isinstance(served, Served):
        return served
    assert isinstance(served, ServedEmbedder)
    raise only_embeds(served.name, served.traits.kind)


def visit_of(request: Request) -> Visit:
    """The request's visit; the gate sets it for every request."""
    visit: Visit = request.state.visit
    return visit


def caller_of(request: Request) -> Caller:
    """The caller of a request."""
    return visit_of(request).caller
