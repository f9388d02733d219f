"""Requests that schemathesis makes up from the server's own OpenAPI document: fitting it, and not."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from functools import cache
from typing import Any, NamedTuple

import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import APIOperation, Case, GenerationMode, checks
from schemathesis.core.result import Ok

from foredraft.errors import BackendError
from foredraft.server.app import build_app
from foredraft.server.pool import ModelPool
from foredraft.server.settings import Limits, ModelSettings, ServerSettings

LIMITS = Limits(max_completion_tokens=16)
"""Answers have an end: most of the requests that are made up do not ask for one. 16 is what text completions
have without asking."""

CHECKS = [checks.not_a_server_error, checks.status_code_conformance, checks.response_schema_conformance]
QUIET = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


@cache
def document() -> dict[str, Any]:
    """The server's OpenAPI document."""
    models = {"fake": ModelSettings(path="fake")}
    return build_app(ModelPool(ServerSettings(models=models), _load)).openapi()


def _load(model: ModelSettings) -> Any:
    raise BackendError(f"{model.path} is only described, not loaded.")


def reaching(model: str) -> dict[str, Any]:
    """A narrower document, whose requests get as far as the model: with that model's name, with token ids
    that every vocabulary has, and without the fields that hardly any random text is valid for.
    """
    narrow = deepcopy(document())
    schemas = narrow["components"]["schemas"]
    del schemas["ResponseRequest"]["properties"]["prompt"]  # OpenAI's stored templates
    for schema in schemas.values():
        fields = schema.get("properties", {})
        for name in _HARDLY_VALID & set(fields):
            del fields[name]
        fields |= {name: values for name, values in _FEW.items() if name in fields}
        if "model" in fields:
            fields["model"] = {"const": model}
    schemas["EmbeddingRequest"]["properties"] |= _EMBEDDING
    schemas["RerankRequest"]["properties"] |= _RERANKING
    for path in narrow["paths"].values():
        for operation in path.values():
            for parameter in operation.get("parameters", ()):
                parameter["schema"] = {"enum": [model, "nonesuch"]}
    for name in ("ChatMessage", "ChatTurn"):
        schemas[name] |= {"properties": _MESSAGE, "required": list(_MESSAGE)}
    schemas["ResponseRequest"]["properties"]["input"] = {"anyOf": [_WORDS, _MESSAGES]}
    return narrow


_HARDLY_VALID = {
    *("grammar", "regex", "tools", "tool_choice", "parallel_tool_calls", "response_format", "prediction"),
    *("continue_final_message", "add_generation_prompt"),
    *("suffix", "best_of", "echo", "stream_options", "top_logprobs", "min_tokens", "metadata"),
}
_TOKEN = {"type": "integer", "minimum": 0, "maximum": 255}
_TOKENS = {"type": "array", "items": _TOKEN, "minItems": 1}
_BIAS = {"type": "number", "minimum": -100, "maximum": 100}
_WORDS = {"type": "string", "minLength": 1, "maxLength": 40}
_FEW = {
    "logit_bias": {"type": "object", "properties": {"97": _BIAS}, "additionalProperties": False},
    "stop_token_ids": {"type": "array", "items": _TOKEN},
    "stop": {"type": "array", "items": _WORDS, "maxItems": 3},
    "prompt": {"anyOf": [_WORDS, _TOKENS]},
    "tokens": _TOKENS,
    "n": {"type": "integer", "minimum": 1, "maximum": 3},
    "max_tokens": {"type": "integer", "minimum": 1, "maximum": LIMITS.max_completion_tokens},
    "max_completion_tokens": {"type": "integer", "minimum": 1, "maximum": LIMITS.max_completion_tokens},
    "max_output_tokens": {"type": "integer", "minimum": 1, "maximum": LIMITS.max_completion_tokens},
    "speculate": {"enum": ["auto", "off", 0, 3]},
    "repetition_penalty": {"type": "number", "minimum": 0.5, "maximum": 2},
}
EMBEDDER, RERANKER = "fake-embedder", "fake-reranker"
_DIMENSIONS = {"type": "integer", "minimum": 1, "maximum": 4}
_TEXTS = {"type": "array", "items": _WORDS, "minItems": 1, "maxItems": 3}
_EMBEDDING = {
    "model": {"const": EMBEDDER},
    "input": {"anyOf": [_WORDS, _TEXTS, _TOKENS]},
    "dimensions": _DIMENSIONS,
    "prompt_name": {"type": "null"},
}
_RERANKING = {"model": {"const": RERANKER}, "query": _WORDS, "documents": _TEXTS}
_MESSAGE = {"role": {"enum": ["user", "assistant"]}, "content": _WORDS}
_MESSAGES = {
    "type": "array",
    "items": {"type": "object", "properties": _MESSAGE, "required": list(_MESSAGE)},
    "minItems": 1,
}


class Attack(NamedTuple):
    """Requests for one operation that fit the document, do not fit it, or reach the model."""

    operation: str
    kind: str

    def __str__(self) -> str:
        return f"{self.operation} {self.kind}"


@cache
def operations(kind: str, model: str) -> dict[str, APIOperation[Any, Any, Any, Any]]:
    """Every method of every path, by its name: "POST /tokenize"."""
    schema = schemathesis.openapi.from_dict(reaching(model) if kind == "reaching" else document())
    found = [result.ok() for result in schema.get_all_operations() if isinstance(result, Ok)]
    return {operation.label: operation for operation in found}


def attacks(model: str) -> list[Attack]:
    """One that fits for every operation, and all three for those that take a body; one that reaches the model
    also where its name is in the path, and none for the console, which has little to do with models.
    """
    every = operations("fitting", model)
    kinds = ("fitting", "misfitting", "reaching")
    return [
        Attack(name, kind)
        for name, made in every.items()
        for kind in kinds
        if made.body or kind == "fitting" or (kind == "reaching" and "{" in name)
        if kind != "reaching" or "/console/" not in name
    ]


def attack(url: str, what: Attack, examples: int, *, model: str = "fake", number: int = 0) -> Counter[int]:
    """Send so many made-up requests; the same for the same `number`. Returns how often each status came.

    Raises what the first one that is answered wrongly makes schemathesis raise, with the request.
    """
    statuses: Counter[int] = Counter()
    fitting = GenerationMode.NEGATIVE if what.kind == "misfitting" else GenerationMode.POSITIVE

    @seed(number)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=QUIET,
        phases=[Phase.generate, Phase.shrink],
    )
    @given(case=operations(what.kind, model)[what.operation].as_strategy(generation_mode=fitting))
    def send(case: Case[Any]) -> None:
        reply = case.call(base_url=url)
        statuses[reply.status_code] += 1
        case.validate_response(reply, checks=CHECKS)

    send()
    return statuses
