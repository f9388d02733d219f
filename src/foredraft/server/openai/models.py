"""GET /v1/models, with the fields of OpenAI's and Anthropic's APIs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter

from foredraft.server.embedding.served import ServedEmbedder
from foredraft.server.pool import ModelPool, Served


def listed(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The list of all models, from the entries of each."""
    names = [entry["id"] for entry in entries]
    pages = {
        "has_more": False,
        "first_id": names[0] if names else None,
        "last_id": names[-1] if names else None,
    }
    return {"object": "list", "data": list(entries), **pages}


def model_router(pool: ModelPool) -> APIRouter:
    """The routes for the models of `pool`."""
    router = APIRouter()

    async def entry(name: str) -> dict[str, Any]:
        described = {"id": name, "object": "model", "created": pool.created, "owned_by": "foredraft"}
        since = datetime.fromtimestamp(pool.created, UTC).isoformat()
        described |= {"type": "model", "display_name": name, "created_at": since}
        described["kind"] = await pool.kind_of(name)
        served = pool.loaded.get(name)
        if served is None:
            return {**described, "loaded": False}
        info = served.info
        traits = served.traits if isinstance(served, ServedEmbedder) else None
        meta: dict[str, Any] = {
            "architecture": info.architecture,
            "quantization": info.quantization,
            "parameters": info.parameters,
            "size_bytes": info.size_bytes,
            "vocab_size": info.vocab_size,
            "memory_bytes": dict(info.memory),
            **({"dimensions": traits.dimensions, "pooling": traits.pooling} if traits else {}),
            "trained_context": info.trained_context,
        }
        if info.context_chosen:
            meta["context_chosen"] = info.context_chosen
        if positions := info.settings.get("positions"):
            meta["positions"] = positions
        described |= {"loaded": True, "max_model_len": info.context_length, "meta": meta}
        if not isinstance(served, Served):
            return described
        sees = served.vision is not None
        # In OpenRouter's form, and in that of llama.cpp's server.
        takes = {"input_modalities": ["text", *["image"] * sees], "output_modalities": ["text"]}
        return {**described, "architecture": takes, "capabilities": ["completion", *["multimodal"] * sees]}

    async def adapter(name: str, model: str) -> dict[str, Any]:
        """As vLLM lists it: a model with a parent."""
        of_model = await entry(model)
        return {**of_model, "id": name, "display_name": name, "parent": model}

    async def described(name: str) -> dict[str, Any]:
        model = pool.adapters.get(name)
        return await entry(name) if model is None else await adapter(name, model)

    @router.get("/v1/models")
    async def models() -> dict[str, Any]:
        return listed([await described(name) for name in (*pool.names, *pool.adapters)])

    @router.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        return await described(name if name in pool.adapters else pool.resolve(name))

    return router
