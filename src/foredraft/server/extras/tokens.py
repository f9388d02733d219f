"""POST /tokenize and /detokenize, compatible with llama.cpp's server."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from foredraft.embedding import TextTokenizer
from foredraft.engine.prompt import check_size
from foredraft.errors import RequestError
from foredraft.server.caller import visit_of
from foredraft.server.embedding.served import ServedEmbedder
from foredraft.server.held import Held
from foredraft.server.openai.schemas import Body, Ids
from foredraft.server.pool import ModelPool
from foredraft.server.rendering import json_response
from foredraft.server.strict_json import strict_router


class TokenizeRequest(Body):
    """`add_special`: add the tokens that begin a text. `parse_special`: recognise special tokens by name."""

    content: str
    model: str | None = None
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class DetokenizeRequest(Body):
    """Token ids to convert to text."""

    tokens: Ids
    model: str | None = None


def token_router(pool: ModelPool) -> APIRouter:
    """The routes for the models of `pool`."""
    router = strict_router()

    @router.post("/tokenize", response_model=dict[str, Any])
    async def tokenize(body: TokenizeRequest, request: Request) -> Response:
        served = await visit_of(request).hold(pool, body.model)
        check_size("content", body.content, served.info)
        return await json_response(await served.prepare(lambda: tokenized(served, body)))

    @router.post("/detokenize", response_model=dict[str, Any])
    async def detokenize(body: DetokenizeRequest, request: Request) -> Response:
        served = await visit_of(request).hold(pool, body.model)
        return await json_response(await served.prepare(lambda: detokenized(served.tokenizer, body)))

    return router


def tokenized(served: Held, body: TokenizeRequest) -> dict[str, Any]:
    """The token ids of a text, with their texts if requested."""
    tokenizer = served.tokenizer
    if body.add_special and isinstance(served, ServedEmbedder):
        tokens = list(served.embedder.encode(body.content).tokens)
    else:
        tokens = tokenizer.encode(body.content, special=body.parse_special, add_bos=body.add_special)
    if not body.with_pieces:
        return {"tokens": tokens}
    return {"tokens": [{"id": token, "piece": _piece(tokenizer.token_bytes(token))} for token in tokens]}


def detokenized(tokenizer: TextTokenizer, body: DetokenizeRequest) -> dict[str, Any]:
    """The text of token ids. Raises RequestError for an invalid id."""
    if any(not 0 <= token < tokenizer.vocab_size for token in body.tokens):
        raise RequestError(f"tokens: ids are 0 to {tokenizer.vocab_size - 1}.")
    data = b"".join(tokenizer.token_bytes(token) for token in body.tokens)
    return {"content": data.decode("utf-8", "replace")}


def _piece(data: bytes) -> str | list[int]:
    """A token's text, or its bytes if they are an incomplete character."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)
