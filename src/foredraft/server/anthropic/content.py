"""Messages and their content blocks, as Anthropic's clients send them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from foredraft.server.anthropic.written_blocks import as_text
from foredraft.server.openai.schemas import Body, Objects
from foredraft.server.picture_parts import image_part

_SPEAKER = {
    "tool_use": "assistant",
    "tool_result": "user",
    "image": "user",
    "thinking": "assistant",
    "redacted_thinking": "assistant",
}
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


class Base64Source(Body):
    """An image in the request itself. Its format is read from the data."""

    type: Literal["base64"]
    data: str
    media_type: str | None = None


class UrlSource(Body):
    """An image at an address."""

    type: Literal["url"]
    url: str


class ImageBlock(Body):
    """An image."""

    type: Literal["image"]
    source: Annotated[Base64Source | UrlSource, Field(discriminator="type")]
    cache_control: CacheControl | None = None

    def as_part(self, where: str) -> dict[str, Any]:
        """The content part of chat completions; `where`: what errors call it."""
        source = self.source
        url = source.url if isinstance(source, UrlSource) else f"data:;base64,{source.data}"
        return image_part(url, where)


def _blocks_of(*kinds: str) -> Callable[[object], object]:
    """Validator: a string becomes one text block, and so does what is text in another shape; blocks of other
    kinds are refused by name.
    """

    def as_blocks(content: object) -> object:
        if isinstance(content, str):
            return [{"type": "text", "text": content}]
        if not isinstance(content, list):
            raise ValueError("must be text or a list of content blocks")
        content = [as_text(block) for block in content]
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


ShownContent = Annotated[
    list[Annotated[TextBlock | ImageBlock, Field(discriminator="type")]],
    Field(fail_fast=True),
    BeforeValidator(_blocks_of("text", "image"), json_schema_input_type=str | list[TextBlock | ImageBlock]),
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
    content: ShownContent | None = None
    is_error: bool | None = None
    cache_control: CacheControl | None = None
    toolset_name: None = None


class ThinkingBlock(Body):
    """What the model thought. Any signature is accepted: another server's thoughts are thoughts, too."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


class RedactedThinkingBlock(Body):
    """What another server's model thought, which cannot be read here: it is left out."""

    type: Literal["redacted_thinking"]
    data: str


Block = Annotated[
    TextBlock | ImageBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ToolResultBlock,
    Field(discriminator="type"),
]
Content = Annotated[
    list[Block],
    Field(fail_fast=True),
    BeforeValidator(
        _blocks_of("text", "image", "thinking", "redacted_thinking", "tool_use", "tool_result"),
        json_schema_input_type=str | list[Block],
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
