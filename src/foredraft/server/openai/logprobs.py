"""Log-probabilities in OpenAI's two forms."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from foredraft.protocols import Tokenizer
from foredraft.types import Event, TokenEvent


def _entry(tokenizer: Tokenizer, token: int, logprob: float) -> dict[str, Any]:
    data = tokenizer.token_bytes(token)
    return {"token": data.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(data)}


def chat_logprobs(tokenizer: Tokenizer, events: Sequence[Event]) -> dict[str, Any] | None:
    """The `logprobs` object of a chat choice, or None if there are no log-probabilities."""
    content = []
    for event in events:
        if not isinstance(event, TokenEvent) or event.logprob is None:
            continue
        top = [_entry(tokenizer, token, value) for token, value in event.logprob.top]
        content.append({**_entry(tokenizer, event.token, event.logprob.logprob), "top_logprobs": top})
    return {"content": content, "refusal": None} if content else None


class AnswerText:
    """Tracks the position of each token in the answer's text, whether or not the text was shown at once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._length = 0

    def add(self, token: int) -> int:
        """Add a token and return the number of characters before it."""
        before = self._length
        self._length += len(self._decoder.decode(self._tokenizer.token_bytes(token)))
        return before

    def skip_to(self, length: int) -> None:
        """Set the next token's position, in characters."""
        self._decoder.reset()
        self._length = length


def completion_logprobs(tokenizer: Tokenizer, event: TokenEvent, offset: int) -> dict[str, Any] | None:
    """The `logprobs` object of a text completion for one token at character `offset`.

    The token is among its alternatives, even if it is not one of the likeliest.
    """
    if event.logprob is None:
        return None
    top: dict[str, float] = {}
    for token, value in (*event.logprob.top, (event.token, event.logprob.logprob)):
        top.setdefault(_text(tokenizer, token), value)
    return {
        "tokens": [_text(tokenizer, event.token)],
        "token_logprobs": [event.logprob.logprob],
        "top_logprobs": [top],
        "text_offset": [offset],
    }


def unscored(tokenizer: Tokenizer, token: int, offset: int) -> dict[str, Any]:
    """The `logprobs` object of a prompt's first token, which has no probability."""
    return {
        "tokens": [_text(tokenizer, token)],
        "token_logprobs": [None],
        "top_logprobs": [None],
        "text_offset": [offset],
    }


def joined(before: dict[str, Any] | None, more: dict[str, Any] | None) -> dict[str, Any] | None:
    """Concatenate two `logprobs` objects. The first one is extended."""
    if before is None or more is None:
        return before or more
    for name, values in more.items():
        before[name] += values
    return before


def _text(tokenizer: Tokenizer, token: int) -> str:
    return tokenizer.token_bytes(token).decode("utf-8", "replace")
