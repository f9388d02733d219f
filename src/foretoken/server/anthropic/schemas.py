"""What Anthropic's clients send. Unknown fields are errors: nothing is accepted and ignored in silence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator

from foretoken.server.openai.schemas import MOST_STOPS, Body
from foretoken.types import SamplingParams


class CacheControl(Body):
    """Marks a prefix to cache. Every prefix is cached here as long as there is room, marked or not."""

    type: Literal["ephemeral"]


class TextBlock(Body):
    """A content block of text. `citations` is null in the answers that clients send back as history."""

    type: Literal["text"]
    text: str
    cache_control: CacheControl | None = None
    citations: None = None


def _as_blocks(content: object) -> object:
    """A string as the one text block it stands for; other kinds of blocks are refused by their names."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise ValueError("must be text or a list of text blocks")
    for place, block in enumerate(content):
        kind = block.get("type") if isinstance(block, Mapping) else None
        if isinstance(kind, str) and kind != "text":
            raise ValueError(f"block {place} has the type {kind!r}; only 'text' blocks are supported")
    return content


Content = Annotated[
    list[TextBlock], BeforeValidator(_as_blocks, json_schema_input_type=str | list[TextBlock])
]

Stops = Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=MOST_STOPS)]


class ChatTurn(Body):
    """One message of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[Content, Field(min_length=1)]


class Metadata(Body):
    """Whom the client acts for, in its own words. Nothing depends on it."""

    user_id: str | None = None


class CountTokensRequest(Body):
    """POST /v1/messages/count_tokens: the part of a request that makes its prompt."""

    model: str
    messages: Annotated[list[ChatTurn], Field(min_length=1)]
    system: Content | None = None
    cache_control: CacheControl | None = None
    tools: Any = None
    tool_choice: Any = None

    @field_validator("tools", "tool_choice")
    @classmethod
    def _no_tools(cls, value: Any) -> None:
        if value is not None:
            raise ValueError("tools are not supported yet by /v1/messages; leave them out")


class MessagesRequest(CountTokensRequest):
    """POST /v1/messages."""

    max_tokens: Annotated[int, Field(ge=1)]
    temperature: Annotated[float, Field(ge=0, le=1)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    stop_sequences: Stops | None = None
    stream: bool = False
    metadata: Metadata | None = None

    def sampling(self) -> SamplingParams:
        """The engine's parameters."""
        return SamplingParams(
            temperature=self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=self.top_k or 0,
            max_tokens=self.max_tokens,
            stop=tuple(self.stop_sequences or ()),
        )


def text_of(blocks: Sequence[TextBlock]) -> str:
    """The text of content blocks, a line each, as the engine joins OpenAI's content parts."""
    return "\n".join(block.text for block in blocks)
