"""Request bodies of OpenAI's APIs. `unknown_fields` handles fields that are not declared here."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from foredraft.errors import RequestError
from foredraft.sampling.params import SAMPLING_FIELDS
from foredraft.server.unknown_fields import Passed, Shape, check, ignored
from foredraft.types import Constraint, SamplingParams

MOST_LOGPROBS = 20
MOST_WHOLE = 2**63 - 1
"""The largest 64-bit integer; no client needs a larger one."""


def _as_whole(given: Any) -> Any:
    """Accept 16.0 as 16: clients in languages without integers send that."""
    return int(given) if isinstance(given, float) and given.is_integer() else given


def _all_whole(given: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    """The same for a list, whose items are only checked one by one if validation fails."""
    try:
        return validate(given)
    except ValidationError:
        if not isinstance(given, list) or not any(isinstance(one, float) for one in given):
            raise
        return validate([_as_whole(one) for one in given])


WHOLE = BeforeValidator(_as_whole)
"""Validator of every integer field."""
MOST_STOP_TOKENS = 1024
"""Tokens that end an answer."""

MOST_MESSAGES = 10_000
"""Maximum messages of a conversation, or items of an input."""

# Stop at the first error: pydantic would report each of a million wrong items, which takes a minute.
Ids = Annotated[list[int], Field(fail_fast=True), WrapValidator(_all_whole)]
StopTokens = Annotated[
    list[int], Field(max_length=MOST_STOP_TOKENS, fail_fast=True), WrapValidator(_all_whole)
]
Texts = Annotated[list[str], Field(fail_fast=True)]
Objects = Annotated[list[dict[str, Any]], Field(fail_fast=True)]
MostTokens = Annotated[int, Field(ge=1, le=MOST_WHOLE), WHOLE]
UNLIMITED = BeforeValidator(lambda given: None if given == -1 and type(given) is int else given)
"""-1 means no limit in LM Studio and llama.cpp."""

MaxTokens = Annotated[MostTokens | None, UNLIMITED]

BUDGETS = AliasChoices(
    "reasoning_budget",
    "reasoning_budget_tokens",
    "thinking_budget_tokens",
    "thinking_token_budget",
    "thinking_budget",
)
"""The names of the thought's budget here, in llama.cpp, in vLLM and of Qwen's own service."""


def _at_least_no_limit(given: Any) -> Any:
    if type(given) is int and given < NO_LIMIT:
        raise ValueError("at least 0, or -1 for no limit")
    return given


NO_LIMIT = -1
"""A budget without a limit, whatever the settings say, as in llama.cpp."""

ReasoningBudget = Annotated[
    Annotated[int, Field(ge=NO_LIMIT, le=MOST_WHOLE), WHOLE] | None,
    BeforeValidator(_at_least_no_limit),
    Field(validation_alias=BUDGETS),
]


def limit(budget: int | None) -> int | None:
    """A budget as the engine wants it: None without a limit."""
    return None if budget == NO_LIMIT else budget


N_PREDICT = Field(validation_alias=AliasChoices("max_tokens", "n_predict"))
NotEmpty = Annotated[str, Field(min_length=1)]
Stop = NotEmpty | Annotated[list[NotEmpty], Field(fail_fast=True)]
Answers = Annotated[int, Field(ge=1, le=MOST_WHOLE), WHOLE]
"""Limited by `limits.max_n`."""


STATELESS = "this server is stateless: it does not store responses."


def only(allowed: Sequence[object], *, why: str) -> BeforeValidator:
    """Validator that refuses every value but `allowed` with the reason `why`, which pydantic cannot give."""

    def check(value: Any) -> Any:
        # Compare types too: 0 equals False but is another value.
        if not any(type(value) is type(one) and value == one for one in allowed):
            raise ValueError(why)
        return value

    return BeforeValidator(check)


def null_as(default: object, kind: Any) -> BeforeValidator:
    """Validator that treats null as an omitted field with this default."""
    return BeforeValidator(
        lambda given: default if given is None else given, json_schema_input_type=kind | None
    )


def at_most(entries: int) -> BeforeValidator:
    """Validator that refuses an object with too many entries before each wrong one becomes an error."""

    def check(given: object) -> object:
        if isinstance(given, dict) and len(given) > entries:
            raise ValueError(f"{len(given)} entries are too many; at most {entries} are allowed")
        return given

    return BeforeValidator(check)


Switch = Annotated[bool, null_as(default=False, kind=bool)]
Priority = Annotated[int, Field(ge=-MOST_WHOLE, le=MOST_WHOLE), WHOLE]
LeastTokens = Annotated[int, Field(ge=0, le=MOST_WHOLE), WHOLE]


class Body(BaseModel):
    """Base of all request bodies. `shapes`: the known fields of objects, or lists of objects, that are kept
    as they were sent.
    """

    # With a minimum length pydantic inspects strings and refuses lone surrogates, which JSON can contain and
    # no answer could repeat.
    model_config = ConfigDict(extra="allow", strict=True, str_min_length=0)

    shapes: ClassVar[Mapping[str, Shape]] = {}

    @model_validator(mode="before")
    @classmethod
    def _known(cls, given: object, info: ValidationInfo) -> object:
        if not isinstance(given, dict):
            return given
        passed: Passed = set() if info.context is None else info.context
        check(given, names_of(cls), passed)
        for one, other in doubles_of(cls):
            if one in given and other in given and given[one] != given[other]:
                raise ValueError(
                    f"{other} is another name of {one}, and their values differ; send one of them"
                )
        for name, shape in cls.shapes.items():
            for place, part in enumerate(cls.parts(name, given.get(name))):
                check(part, shape, passed, (name, place))
        return given

    @staticmethod
    def parts(name: str, value: object) -> list[dict[str, Any]]:
        """The objects in a field that has a shape; of content only text parts, since other parts are refused
        where messages are built.
        """
        found = [part for part in value if isinstance(part, dict)] if isinstance(value, list) else []
        return [part for part in found if name != "content" or part.get("type") == "text"]

    def passed_over(self, at: str = "") -> Iterator[str]:
        """The paths of fields that were ignored."""
        yield from ignored(self.model_extra or {}, names_of(type(self)), at)
        for name in type(self).model_fields:
            value, way = getattr(self, name), f"{at}{name}."
            for one in value if isinstance(value, list) and value and isinstance(value[0], Body) else [value]:
                if isinstance(one, Body):
                    yield from one.passed_over(way)
            if name in self.shapes:
                for part in self.parts(name, value):
                    yield from ignored(part, self.shapes[name], way)


@cache
def names_of(kind: type[BaseModel]) -> frozenset[str]:
    """All names by which clients can send the fields of a body."""
    return frozenset(name for names in _aliases(kind).values() for name in names)


@cache
def doubles_of(kind: type[BaseModel]) -> list[tuple[str, str]]:
    """(a field's name, another name of it) for all fields with several names."""
    return [(names[0], name) for names in _aliases(kind).values() for name in names[1:]]


def _aliases(kind: type[BaseModel]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, field in kind.model_fields.items():
        alias = field.validation_alias
        if isinstance(alias, AliasChoices):
            found[name] = [str(choice) for choice in alias.choices]
        else:
            by_name = alias is None or kind.model_config.get("populate_by_name", False)
            found[name] = [*([] if alias is None else [str(alias)]), *([name] if by_name else [])]
    return found


def _first_wrong(given: object) -> object:
    """Reduce a large object with wrong entries to the first wrong one: each would become an error."""
    for token, bias in given.items() if isinstance(given, dict) else ():
        if not isinstance(bias, int | float) or isinstance(bias, bool) or not -MOST_BIAS <= bias <= MOST_BIAS:
            return {token: bias}
    return given


MOST_BIAS = 100.0
Bias = Annotated[float, Field(ge=-MOST_BIAS, le=MOST_BIAS)]
Biases = Annotated[dict[str, Bias], BeforeValidator(_first_wrong)]


class StreamOptions(Body):
    """`include_usage`: send a last chunk with the usage."""

    include_usage: Switch = False


def sampling_of(body: Body, **others: Any) -> SamplingParams:
    """The engine's sampling parameters: the body's fields of `SamplingParams`, and `others`.

    Omitted fields are neutral; the default temperature of every API is 1.
    """
    given = {
        name: value
        for name in SAMPLING_FIELDS
        if name != "thinking" and (value := getattr(body, name, None)) is not None
    }
    given["reasoning_budget"] = limit(given.get("reasoning_budget"))
    return SamplingParams(**{"temperature": 1.0, **given, **others})


class Choosing(Body):
    """Sampling fields: OpenAI's, and further ones of llama.cpp's server and vLLM."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=MOST_WHOLE), WHOLE] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[
        Annotated[float, Field(gt=0, allow_inf_nan=False)] | None,
        Field(validation_alias=AliasChoices("repetition_penalty", "repeat_penalty")),
    ] = None
    seed: Annotated[int, Field(ge=-MOST_WHOLE - 1, le=MOST_WHOLE), WHOLE] | None = None
    stop: Stop | None = None
    stop_repetition: Switch = False
    """Stop an answer that only repeats one passage."""

    def chosen(self, **others: Any) -> SamplingParams:
        """The engine's sampling parameters for these fields and `others`."""
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return sampling_of(self, top_k=max(0, self.top_k or 0), stop=tuple(stops), **others)


class Scheduling(Body):
    """Fields about when a request runs and how much is drafted for it. Neither changes its answer."""

    speculate: Literal["auto", "off"] | Annotated[int, Field(ge=0, le=MOST_WHOLE), WHOLE] | None = None
    priority: Annotated[Priority, null_as(0, Priority)] = 0

    @property
    def max_draft(self) -> int | None:
        """The limit on drafts set by `speculate`."""
        if self.speculate == "off":
            return 0
        return self.speculate if isinstance(self.speculate, int) else None


MOST_METADATA = 16
MetadataKey = Annotated[str, Field(max_length=64)]
MetadataValue = Annotated[str, Field(max_length=512)]


class Hints(Body):
    """Fields of OpenAI's clients that have no effect here."""

    metadata: Annotated[dict[MetadataKey, MetadataValue] | None, at_most(MOST_METADATA)] = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    """A hint for finding a cached prefix; here every prompt finds it without a key."""


class SamplingBody(Choosing, Scheduling):
    """Fields that both completion APIs share."""

    model: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    n: Answers | None = 1
    logit_bias: Biases | None = None
    user: str | None = None
    min_tokens: Annotated[LeastTokens, null_as(0, LeastTokens)] = 0
    ignore_eos: Switch = False
    stop_token_ids: StopTokens | None = None

    @property
    def answers(self) -> int:
        """The number of answers to each prompt."""
        return 1 if self.n is None else self.n

    def sampling(
        self, *, max_tokens: int | None, logprobs: int | None, constraint: Constraint | None = None
    ) -> SamplingParams:
        """The engine's sampling parameters. Raises RequestError for an unsupported value."""
        return self.chosen(
            logit_bias=_bias(self.logit_bias or {}),
            max_tokens=max_tokens,
            stop_tokens=tuple(self.stop_token_ids or ()),
            logprobs=logprobs,
            constraint=constraint,
        )


_TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,17}")


def _bias(bias: dict[str, float]) -> dict[int, float]:
    """The biases by token id. Raises RequestError for other keys: of "07" and "7" one would be ignored."""
    if not all(map(_TOKEN_ID.fullmatch, bias)):
        raise RequestError('logit_bias: its keys must be token ids, such as "97".')
    return {int(token): value for token, value in bias.items()}


class JsonSchema(Body):
    """OpenAI's `json_schema` object. A schema is always enforced; keywords that cannot be enforced are
    refused with `strict`, and ignored without it.
    """

    model_config = ConfigDict(populate_by_name=True)

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(Body):
    """Format of the answer. llama.cpp's server also accepts a schema without OpenAI's object around it."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="before")
    @classmethod
    def _bare_schema(cls, given: object) -> object:
        if isinstance(given, dict) and isinstance(given.get("schema"), dict) and "json_schema" not in given:
            rest = {name: value for name, value in given.items() if name != "schema"}
            named = {"name": "answer", "schema": given["schema"]}
            return {**rest, "type": "json_schema", "json_schema": named}
        return given


class CompletionRequest(SamplingBody):
    """POST /v1/completions."""

    prompt: str | Texts | Ids | Annotated[list[Ids], Field(fail_fast=True)]
    max_tokens: Annotated[Annotated[int, Field(ge=0, le=MOST_WHOLE), WHOLE] | None, UNLIMITED, N_PREDICT] = 16
    """0 with `echo`: return only the prompt, and with `logprobs` its log-probabilities."""
    logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS), WHOLE] | None = None
    grammar: Annotated[str | None, Field(validation_alias=AliasChoices("grammar", "guided_grammar"))] = None
    regex: Annotated[str | None, Field(validation_alias=AliasChoices("regex", "guided_regex"))] = None
    echo: bool | None = False
    suffix: str | None = None
    best_of: Answers | None = None
