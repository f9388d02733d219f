"""POST /tokenize and /detokenize, as llama.cpp's server has them."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from foretoken.errors import RequestError
from foretoken.server.openai.schemas import Body
from foretoken.server.pool import ModelPool


class TokenizeRequest(Body):
    """`add_special`: with the tokens that begin a text. `parse_special`: special tokens by their names."""

    content: str
    model: str | None = None
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class DetokenizeRequest(Body):
    """Token ids to turn into text."""

    tokens: list[int]
    model: str | None = None


def token_router(pool: ModelPool) -> APIRouter:
    """The routes, for the models of `pool`."""
    router = APIRouter()

    @router.post("/tokenize")
    async def tokenize(body: TokenizeRequest) -> dict[str, Any]:
        tokenizer = (await pool.get(body.model)).tokenizer
        tokens = tokenizer.encode(body.content, special=body.parse_special, add_bos=body.add_special)
        if not body.with_pieces:
            return {"tokens": tokens}
        pieces = [tokenizer.token_bytes(token) for token in tokens]
        return {
            "tokens": [
                {"id": token, "piece": _piece(piece)} for token, piece in zip(tokens, pieces, strict=True)
            ]
        }

    @router.post("/detokenize")
    async def detokenize(body: DetokenizeRequest) -> dict[str, Any]:
        tokenizer = (await pool.get(body.model)).tokenizer
        if any(not 0 <= token < tokenizer.vocab_size for token in body.tokens):
            raise RequestError(f"tokens: ids are 0 to {tokenizer.vocab_size - 1}.")
        data = b"".join(tokenizer.token_bytes(token) for token in body.tokens)
        return {"content": data.decode("utf-8", "replace")}

    return router


def _piece(data: bytes) -> str | list[int]:
    """A token's text, or its bytes where they are part of a character only."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)
