"""GET /v1/models, with the fields of OpenAI's and Anthropic's APIs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter

from foredraft.server.pool import ModelPool


def model_router(pool: ModelPool) -> APIRouter:
    """The routes for the models of `pool`."""
    router = APIRouter()

    def entry(name: str) -> dict[str, Any]:
        described = {"id": name, "object": "model", "created": pool.created, "owned_by": "foredraft"}
        since = datetime.fromtimestamp(pool.created, UTC).isoformat()
        described |= {"type": "model", "display_name": name, "created_at": since}
        served = pool.loaded.get(name)
        if served is None:
            return {**described, "loaded": False}
        info = served.info
        meta = {
            "architecture": info.architecture,
            "quantization": info.quantization,
            "parameters": info.parameters,
            "size_bytes": info.size_bytes,
            "vocab_size": info.vocab_size,
            "memory_bytes": dict(info.memory),
        }
        return {**described, "loaded": True, "max_model_len": info.context_length, "meta": meta}

    @router.get("/v1/models")
    async def models() -> dict[str, Any]:
        names = pool.names
        pages = {
            "has_more": False,
            "first_id": names[0] if names else None,
            "last_id": names[-1] if names else None,
        }
        return {"object": "list", "data": [entry(name) for name in names], **pages}

    @router.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        return entry(pool.resolve(name))

    return router
