"""Messages and their content blocks, as Anthropic's clients send them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from foredraft.server.openai.schemas import Body, Objects

_SPEAKER = {"tool_use": "assistant", "tool_result": "user"}
"""The role whose messages may contain a kind of block; text may be in all."""


class CacheControl(Body):
    """Marks a prefix to cache. Here every prefix is cached as long as there is room, marked or not."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class TextBlock(Body):
    """A content block of text. Clients send back `citations` of earlier answers as history; they are ignored,
    because the text is complete without them.
    """

    type: Literal["text"]
    text: str
    cache_control: CacheControl | None = None
    citations: Objects | None = None


def _blocks_of(*kinds: str) -> Callable[[object], object]:
    """Validator: a string becomes one text block; blocks of other kinds are refused by name."""

    def as_blocks(content: object) -> object:
        if isinstance(content, str):
            return [{"type": "text", "text": content}]
        if not isinstance(content, list):
            raise ValueError("must be text or a list of content blocks")
        for place, block in enumerate(content):
            kind = block.get("type") if isinstance(block, Mapping) else None
            if isinstance(kind, str) and kind not in kinds:
                known = " and ".join(map(repr, kinds))
                raise ValueError(f"block {place} has the type {kind!r}; only {known} blocks are supported")
        return content

    return as_blocks


TextContent = Annotated[
    list[TextBlock],
    Field(fail_fast=True),
    BeforeValidator(_blocks_of("text"), json_schema_input_type=str | list[TextBlock]),
]


class DirectCaller(Body):
    """The model made the call itself."""

    type: Literal["direct"]


class ToolUseBlock(Body):
    """A call that the model made earlier."""

    type: Literal["tool_use"]
    id: Annotated[str, Field(min_length=1)]
    name: Annotated[str, Field(min_length=1)]
    input: dict[str, Any]
    cache_control: CacheControl | None = None
    caller: DirectCaller | None = None
    toolset_name: None = None


class ToolResultBlock(Body):
    """The result of a call."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: TextContent | None = None
    is_error: bool | None = None
    cache_control: CacheControl | None = None
    toolset_name: None = None


Block = Annotated[TextBlock | ToolUseBlock | ToolResultBlock, Field(discriminator="type")]
Content = Annotated[
    list[Block],
    Field(fail_fast=True),
    BeforeValidator(
        _blocks_of("text", "tool_use", "tool_result"), json_schema_input_type=str | list[TextBlock]
    ),
]


class ChatTurn(Body):
    """One message of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[Content, Field(min_length=1)]

    @model_validator(mode="after")
    def _check_roles(self) -> ChatTurn:
        for place, block in enumerate(self.content):
            speaker = _SPEAKER.get(block.type, self.role)
            if speaker != self.role:
                raise ValueError(
                    f"content block {place} has the type {block.type!r}, which is for messages of the role "
                    f"{speaker!r}"
                )
        return self


def text_of(blocks: Sequence[TextBlock]) -> str:
    """The text of content blocks, one per line, as the engine joins OpenAI's content parts."""
    return "\n".join(block.text for block in blocks)
