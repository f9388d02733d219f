"""Request bodies of Anthropic's API. `unknown_fields` handles fields that are not declared here."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from foredraft.server.anthropic.content import CacheControl, ChatTurn, TextContent
from foredraft.server.anthropic.output import OutputConfig
from foredraft.server.anthropic.tools import ToolChoiceParam, Tools
from foredraft.server.openai.schemas import (
    MOST_MESSAGES,
    MOST_WHOLE,
    WHOLE,
    Body,
    MostTokens,
    Switch,
    only,
    sampling_of,
)
from foredraft.server.template_variables import TemplateKwargs, Wishes
from foredraft.types import Constraint, SamplingParams

Stops = Annotated[list[Annotated[str, Field(min_length=1)]], Field(fail_fast=True)]


class Metadata(Body):
    """The client's id of its end user. It has no effect."""

    user_id: str | None = None


class NoThinking(Body):
    """Answer without thinking first."""

    type: Literal["disabled"]


class EnabledThinking(Body):
    """Think first, for at most `budget_tokens` tokens."""

    type: Literal["enabled"]
    budget_tokens: MostTokens | None = None
    display: str | None = None


class AdaptiveThinking(Body):
    """The model decides whether to think."""

    type: Literal["adaptive"]
    display: str | None = None


Thinking = Annotated[NoThinking | EnabledThinking | AdaptiveThinking, Field(discriminator="type")]
_NO_SERVERS = "MCP servers are not supported; send their tools as your own tools"


class CountTokensRequest(Body):
    """POST /v1/messages/count_tokens: the part of a request that determines its prompt."""

    model: str
    messages: Annotated[list[ChatTurn], Field(min_length=1, max_length=MOST_MESSAGES, fail_fast=True)]
    system: TextContent | None = None
    cache_control: CacheControl | None = None
    tools: Tools | None = None
    tool_choice: ToolChoiceParam | None = None
    output_config: OutputConfig | None = None
    thinking: Thinking | None = None
    chat_template_kwargs: TemplateKwargs | None = None
    mcp_servers: Annotated[list[None] | None, Field(max_length=0), only([None, []], why=_NO_SERVERS)] = None

    @property
    def wishes(self) -> Wishes:
        """Settings for the chat template."""
        match self.thinking:
            case NoThinking():
                return Wishes(thinks=False, variables=self.chat_template_kwargs)
            case EnabledThinking(budget_tokens=budget):
                return Wishes(thinks=True, budget=budget, variables=self.chat_template_kwargs)
        return Wishes(variables=self.chat_template_kwargs)

    @property
    def thought_omitted(self) -> bool:
        """Whether the answer has the thought's block without its text."""
        return not isinstance(self.thinking, NoThinking | None) and self.thinking.display == "omitted"


class MessagesRequest(CountTokensRequest):
    """POST /v1/messages."""

    max_tokens: MostTokens
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=MOST_WHOLE), WHOLE] | None = None
    stop_sequences: Stops | None = None
    stop_repetition: Switch = False
    """Stop an answer that only repeats one passage."""
    stream: bool | None = None
    metadata: Metadata | None = None
    container: Annotated[None, only([None], why="containers are not supported; remove it")] = None

    def sampling(self, constraint: Constraint | None = None) -> SamplingParams:
        """The engine's sampling parameters."""
        budget = self.thinking.budget_tokens if isinstance(self.thinking, EnabledThinking) else None
        return sampling_of(
            self,
            stop=tuple(self.stop_sequences or ()),
            constraint=constraint,
            reasoning_budget=budget,
        )
