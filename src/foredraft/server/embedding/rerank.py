"""POST /v1/rerank: a query and documents in, the documents by relevance out."""

from __future__ import annotations

import math
import secrets
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from foredraft.embedding import EmbedderTraits, Encoded
from foredraft.server.caller import visit_of
from foredraft.server.embedding.lengths import Fitting
from foredraft.server.embedding.schemas import RerankRequest, texts_of
from foredraft.server.embedding.served import ServedEmbedder
from foredraft.server.pool import ModelPool
from foredraft.server.rendering import json_response
from foredraft.server.strict_json import strict_router

PATHS = ("/v1/rerank", "/rerank", "/v1/reranking", "/reranking", "/v2/rerank")
"""The same under the paths of llama.cpp's server, vLLM and Cohere."""


def rerank_router(pool: ModelPool) -> APIRouter:
    """The routes for the models of `pool`."""
    router = strict_router()

    async def rerank(body: RerankRequest, request: Request) -> Response:
        served = await visit_of(request).lease_embedder(pool, body.model, "reranker")
        pairs = await served.prepare(lambda: encoded(served, body))
        scores = [score(float(row[0]), served.traits) for row in await served.compute(pairs)]
        tokens = sum(len(pair.tokens) for pair in pairs)
        return await json_response(
            {
                "id": f"rerank-{secrets.token_hex(12)}",
                "object": "list",
                "model": served.name,
                "results": _results(scores, body),
                "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            }
        )

    for path in PATHS:
        router.post(path, response_model=dict[str, Any], include_in_schema=path == PATHS[0])(rerank)
    return router


def encoded(served: ServedEmbedder, body: RerankRequest) -> list[Encoded]:
    """The pairs of query and document as tokens, in order. Raises ContextLengthError."""
    fitting = Fitting(served, body.truncate, body.truncate_prompt_tokens)
    return [
        fitting.pair(f"documents: the query with document {number}", body.query, document)
        for number, document in enumerate(texts_of(body))
    ]


def score(value: float, traits: EmbedderTraits) -> float:
    """A relevance of 0 to 1, but of a model whose authors leave its numbers as they are."""
    if traits.scores != "logit":
        return value
    return 1.0 / (1.0 + math.exp(-value)) if value >= 0 else math.exp(value) / (1.0 + math.exp(value))


def _results(scores: list[float], body: RerankRequest) -> list[dict[str, Any]]:
    """The documents by relevance; those as relevant as each other in the order in which they came."""
    order = sorted(range(len(scores)), key=lambda index: -scores[index])[: body.top_n]
    documents = texts_of(body) if body.return_documents else []
    return [
        {
            "index": index,
            "relevance_score": scores[index],
            **({"document": {"text": documents[index]}} if documents else {}),
        }
        for index in order
    ]
