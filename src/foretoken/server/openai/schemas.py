"""What OpenAI's clients send. Unknown fields are errors: nothing is accepted and ignored in silence."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from foretoken.errors import RequestError
from foretoken.types import Constraint, SamplingParams

MOST_ANSWERS = 16
MOST_STOPS = 16
MOST_LOGPROBS = 20
MOST_WHOLE = 2**63 - 1
"""The largest whole number of 64 bits. No client means a larger one."""

MOST_KEYS = 100
"""Keys of one object: no API's has as many fields."""

# One complaint is enough: pydantic would make one for each of a million wrong items, which takes a minute.
Ids = Annotated[list[int], Field(fail_fast=True)]
Texts = Annotated[list[str], Field(fail_fast=True)]
Objects = Annotated[list[dict[str, Any]], Field(fail_fast=True)]
MOST_BIASED = 16_384
"""Entries of `logit_bias` that are read at all; `limits.max_logit_bias` says how many are served."""

MostTokens = Annotated[int, Field(ge=1, le=MOST_WHOLE)]
Stop = str | Annotated[list[str], Field(max_length=MOST_STOPS)]


def at_most(entries: int) -> BeforeValidator:
    """Refuses a larger object before its entries are looked at: each wrong one would become an error."""

    def check(given: object) -> object:
        if isinstance(given, dict) and len(given) > entries:
            raise ValueError(f"{len(given)} entries are too many; at most {entries} are allowed")
        return given

    return BeforeValidator(check)


class Body(BaseModel):
    """Base of every request body."""

    # With a least length pydantic looks into strings, and refuses half characters, which JSON can hold and no
    # answer could repeat.
    model_config = ConfigDict(extra="forbid", strict=True, str_min_length=0)

    @model_validator(mode="before")
    @classmethod
    def _few_keys(cls, given: object) -> object:
        if isinstance(given, dict) and len(given) > MOST_KEYS:
            raise ValueError(f"an object with {len(given)} keys is none that is known here")
        return given


class StreamOptions(Body):
    """`include_usage`: a last chunk with the usage."""

    include_usage: bool = False


class Choosing(Body):
    """How tokens are chosen: OpenAI's fields, and further ones of llama.cpp's server and vLLM."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=MOST_WHOLE)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    seed: Annotated[int, Field(ge=-MOST_WHOLE - 1, le=MOST_WHOLE)] | None = None
    stop: Stop | None = None

    def chosen(self) -> SamplingParams:
        """The engine's parameters for these fields; 1 is the default temperature."""
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return SamplingParams(
            temperature=1.0 if self.temperature is None else self.temperature,
            top_k=max(0, self.top_k or 0),
            top_p=1.0 if self.top_p is None else self.top_p,
            min_p=self.min_p or 0.0,
            repetition_penalty=1.0 if self.repetition_penalty is None else self.repetition_penalty,
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            seed=self.seed,
            stop=tuple(stops),
        )


class Scheduling(Body):
    """When a request runs, and how much is drafted for it. Neither changes its answer."""

    speculate: Literal["auto", "off"] | Annotated[int, Field(ge=0, le=MOST_WHOLE)] | None = None
    priority: Annotated[int, Field(ge=-MOST_WHOLE, le=MOST_WHOLE)] = 0

    @property
    def max_draft(self) -> int | None:
        """The cap on drafts that `speculate` says."""
        if self.speculate == "off":
            return 0
        return self.speculate if isinstance(self.speculate, int) else None


class SamplingBody(Choosing, Scheduling):
    """Fields that the two completion APIs share."""

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MOST_ANSWERS)] = 1
    logit_bias: Annotated[
        dict[str, Annotated[float, Field(ge=-100, le=100)]] | None, at_most(MOST_BIASED)
    ] = None
    user: str | None = None
    min_tokens: Annotated[int, Field(ge=0, le=MOST_WHOLE)] = 0
    ignore_eos: bool = False
    stop_token_ids: Ids | None = None

    def sampling(
        self, *, max_tokens: int | None, logprobs: int | None, constraint: Constraint | None = None
    ) -> SamplingParams:
        """The engine's parameters. Raises RequestError for a value it cannot do."""
        return replace(
            self.chosen(),
            logit_bias=_bias(self.logit_bias or {}),
            max_tokens=max_tokens,
            min_tokens=self.min_tokens,
            stop_tokens=tuple(self.stop_token_ids or ()),
            ignore_eos=self.ignore_eos,
            logprobs=logprobs,
            constraint=constraint,
        )


def _bias(bias: dict[str, float]) -> dict[int, float]:
    try:
        return {int(token): value for token, value in bias.items()}
    except ValueError:
        raise RequestError("logit_bias: its keys must be token ids.") from None


class ChatMessage(Body):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Objects | None = None
    name: str | None = None
    tool_calls: Objects | None = None
    tool_call_id: str | None = None
    refusal: None = None


class Prediction(Body):
    """OpenAI's predicted output."""

    type: Literal["content"]
    content: str | Objects


class JsonSchema(Body):
    """OpenAI's `json_schema` object. `strict` makes no difference: a schema is always followed."""

    model_config = ConfigDict(populate_by_name=True)

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(Body):
    """What the answer has to be."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class ChatRequest(SamplingBody):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, fail_fast=True)]
    max_tokens: MostTokens | None = None
    max_completion_tokens: MostTokens | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] | None = None
    prediction: Prediction | None = None
    response_format: ResponseFormat | None = None
    grammar: str | None = None
    regex: str | None = None
    tools: Objects | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None


class CompletionRequest(SamplingBody):
    """POST /v1/completions."""

    prompt: str | Texts | Ids | Annotated[list[Ids], Field(fail_fast=True)]
    max_tokens: MostTokens | None = 16
    logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] | None = None
    grammar: str | None = None
    regex: str | None = None
    echo: bool = False
    suffix: str | None = None
    best_of: Annotated[int, Field(ge=1, le=MOST_ANSWERS)] | None = None
