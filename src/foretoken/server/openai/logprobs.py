"""Log-probabilities in OpenAI's two forms."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from foretoken.protocols import Tokenizer
from foretoken.types import TokenEvent


def _entry(tokenizer: Tokenizer, token: int, logprob: float) -> dict[str, Any]:
    data = tokenizer.token_bytes(token)
    return {"token": data.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(data)}


def chat_logprobs(tokenizer: Tokenizer, events: Sequence[TokenEvent]) -> dict[str, Any]:
    """The `logprobs` object of a chat choice."""
    content = []
    for event in events:
        if event.logprob is None:
            continue
        top = [_entry(tokenizer, token, value) for token, value in event.logprob.top]
        content.append({**_entry(tokenizer, event.token, event.logprob.logprob), "top_logprobs": top})
    return {"content": content, "refusal": None}


class AnswerText:
    """Where each token of an answer begins in its text, whether or not the text was shown at once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._length = 0

    def add(self, token: int) -> int:
        """The next token: returns how many characters come before it."""
        before = self._length
        self._length += len(self._decoder.decode(self._tokenizer.token_bytes(token)))
        return before


def completion_logprobs(tokenizer: Tokenizer, event: TokenEvent, offset: int) -> dict[str, Any] | None:
    """The `logprobs` object of a text completion for one token, which begins `offset` characters in."""
    if event.logprob is None:
        return None

    def text(token: int) -> str:
        return tokenizer.token_bytes(token).decode("utf-8", "replace")

    return {
        "tokens": [text(event.token)],
        "token_logprobs": [event.logprob.logprob],
        "top_logprobs": [{text(token): value for token, value in event.logprob.top}],
        "text_offset": [offset],
    }
