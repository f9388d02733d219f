"""POST /v1/embeddings: texts in, vectors out."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import Response

from foredraft.embedding import EmbedderTraits, Encoded, Vectors
from foredraft.errors import RequestError, quoted
from foredraft.server.caller import visit_of
from foredraft.server.embedding.lengths import Fitting, Given
from foredraft.server.embedding.schemas import EmbeddingRequest
from foredraft.server.embedding.served import ServedEmbedder
from foredraft.server.pool import ModelPool
from foredraft.server.rendering import json_response
from foredraft.server.strict_json import strict_router


def embeddings_router(pool: ModelPool) -> APIRouter:
    """The route for the models of `pool`."""
    router = strict_router()

    @router.post("/v1/embeddings", response_model=dict[str, Any])
    async def embeddings(body: EmbeddingRequest, request: Request) -> Response:
        served = await visit_of(request).lease_embedder(pool, body.model, "embedding")
        _check(served.traits, body)
        texts = await served.prepare(lambda: encoded(served, body))
        vectors = await served.compute(texts)
        data = await served.prepare(lambda: _data(_finished(vectors, served.traits, body), body))
        tokens = sum(len(text.tokens) for text in texts)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return await json_response({"object": "list", "data": data, "model": served.name, "usage": usage})

    return router


def _check(traits: EmbedderTraits, body: EmbeddingRequest) -> None:
    """Raises RequestError for dimensions that the model does not have."""
    if body.dimensions is not None and body.dimensions > traits.dimensions:
        raise RequestError(f"dimensions: {body.dimensions} are too many; this model has {traits.dimensions}.")


def encoded(served: ServedEmbedder, body: EmbeddingRequest) -> list[Encoded]:
    """The texts of a request as tokens, in order. Raises RequestError, ContextLengthError."""
    fitting = Fitting(served, body.truncate, body.truncate_prompt_tokens)
    prompt = _prompt(served.traits, body.prompt_name)
    texts = _texts(body.input)
    found = []
    for number, text in enumerate(texts):
        what = "input" if len(texts) == 1 else f"input: text {number}"
        if not isinstance(text, str):
            found.append(fitting.tokens(what, text))
            continue
        found.append(fitting.text(what, prompt + text))
    return found


def _prompt(traits: EmbedderTraits, name: str | None) -> str:
    """What is put in front of texts. Raises RequestError for a name that the model does not have."""
    prompts: Mapping[str, str] = traits.prompts
    if name is None:
        return prompts.get(traits.default_prompt, "")
    if name not in prompts:
        known = ", ".join(map(quoted, prompts))
        raise RequestError(
            f"prompt_name: this model has no prompt {quoted(name)}.",
            hint=f"Its prompts are {known}." if known else "It has none: put the text in front yourself.",
        )
    return prompts[name]


def _texts(given: str | list[str] | list[int] | list[list[int]]) -> list[Given]:
    """The texts of a request, each as text or token ids."""
    if isinstance(given, str):
        return [given]
    tokens = [part for part in given if isinstance(part, int)]
    return [tokens] if tokens else [part for part in given if not isinstance(part, int)]


def _finished(vectors: Vectors, traits: EmbedderTraits, body: EmbeddingRequest) -> Vectors:
    """The vectors with the dimensions asked for, and of length 1 where the request or the model wants it.
    Each is computed by itself: a row must not depend on how many there are.
    """
    normalize = traits.normalized if body.normalize is None else body.normalize
    cut = vectors[:, : body.dimensions] if body.dimensions else vectors
    return np.stack([unit(vector) for vector in cut]) if normalize else cut


def unit(vector: Vectors) -> Vectors:
    """The vector with length 1 (Euclidean); zeros stay zeros."""
    wide = vector.astype(np.float64)
    length = float(np.sqrt(np.dot(wide, wide)))
    return (wide / length if length else wide).astype(np.float32)


def _data(vectors: Vectors, body: EmbeddingRequest) -> list[dict[str, Any]]:
    packed = body.encoding_format == "base64"
    return [
        {"object": "embedding", "index": index, "embedding": _packed(vector) if packed else vector.tolist()}
        for index, vector in enumerate(vectors)
    ]


def _packed(vector: Sequence[float] | Vectors) -> str:
    """The base64 of little-endian 32-bit floats."""
    return base64.b64encode(np.asarray(vector, "<f4").tobytes()).decode("ascii")
