"""A loaded embedding model or reranker, and its requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foredraft.embedding import Embedder, EmbedderTraits, Encoded, ModelKind, Vectors
from foredraft.server.embedding.worker import EmbedderWorker
from foredraft.server.held import Held
from foredraft.server.request_log import current


@dataclass(slots=True, kw_only=True)
class ServedEmbedder(Held):
    """A loaded embedding model or reranker under the name that clients use."""

    worker: EmbedderWorker
    embedder: Embedder

    @property
    def kind(self) -> ModelKind:
        return self.traits.kind

    @property
    def traits(self) -> EmbedderTraits:
        return self.embedder.traits

    async def compute(self, texts: Sequence[Encoded]) -> Vectors:
        """The vectors or scores of a request's texts, counted and logged. Raises what
        `EmbedderWorker.compute` does.
        """
        tokens = sum(len(text.tokens) for text in texts)
        with self.hold(), self.metrics.embedding(self.name, texts=len(texts), tokens=tokens):
            return await self.worker.compute(
                texts,
                most_waiting=self.limits.max_waiting,
                deadline_s=current().left_of(self.limits.request_timeout_s),
            )
