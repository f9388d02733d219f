"""What Anthropic's clients send. Unknown fields are errors: nothing is accepted and ignored in silence."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from foretoken.server.anthropic.content import CacheControl, ChatTurn, TextContent
from foretoken.server.anthropic.output import OutputConfig
from foretoken.server.anthropic.tools import ToolChoiceParam, Tools
from foretoken.server.openai.schemas import MOST_STOPS, MOST_WHOLE, Body, MostTokens
from foretoken.types import Constraint, SamplingParams

Stops = Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=MOST_STOPS)]


class Metadata(Body):
    """Whom the client acts for, in its own words. Nothing depends on it."""

    user_id: str | None = None


def _disabled(thinking: object) -> object:
    if thinking not in (None, {"type": "disabled"}):
        raise ValueError('only {"type": "disabled"} is supported; or leave it out')
    return thinking


class Thinking(Body):
    """No block of an answer is set apart for thinking."""

    type: Literal["disabled"]


class CountTokensRequest(Body):
    """POST /v1/messages/count_tokens: the part of a request that makes its prompt."""

    model: str
    messages: Annotated[list[ChatTurn], Field(min_length=1, fail_fast=True)]
    system: TextContent | None = None
    cache_control: CacheControl | None = None
    tools: Tools | None = None
    tool_choice: ToolChoiceParam | None = None
    output_config: OutputConfig | None = None
    thinking: Annotated[Thinking | None, BeforeValidator(_disabled)] = None
    speed: Literal["standard"] | None = None


class MessagesRequest(CountTokensRequest):
    """POST /v1/messages. There is one tier of service: it is both the best and the standard one."""

    max_tokens: MostTokens
    temperature: Annotated[float, Field(ge=0, le=1)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=MOST_WHOLE)] | None = None
    stop_sequences: Stops | None = None
    stream: bool = False
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None

    def sampling(self, constraint: Constraint | None = None) -> SamplingParams:
        """The engine's parameters."""
        return SamplingParams(
            temperature=self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=self.top_k or 0,
            max_tokens=self.max_tokens,
            stop=tuple(self.stop_sequences or ()),
            constraint=constraint,
        )
