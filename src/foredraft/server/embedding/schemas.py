"""Request bodies of /v1/embeddings and /v1/rerank."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from foredraft.server.openai.schemas import MOST_WHOLE, WHOLE, Body, Ids, NotEmpty, Texts

MOST_TEXTS = 2048
"""Of one request, as in OpenAI's API."""


def _side(given: object) -> object:
    """`truncate` as a word: Cohere's and NVIDIA's are words, that of Hugging Face and Jina is a switch."""
    if isinstance(given, bool) or given is None:
        return "end" if given else "none"
    return given.lower() if isinstance(given, str) else given


Truncate = Annotated[
    Literal["none", "start", "end"],
    BeforeValidator(_side, json_schema_input_type=bool | Literal["none", "start", "end"] | None),
]
"""Which side of a text that is too long is left out."""

MostOfText = Annotated[int, Field(ge=-1, le=MOST_WHOLE), WHOLE] | None
"""Tokens to which texts are cut, at their end; -1: those that the model takes."""


def _checked(given: Any) -> Any:
    """The same. Raises ValueError, in one sentence: pydantic would have one for each form of an input."""
    if isinstance(given, str):
        if not given:
            raise ValueError("it is empty")
        return given
    several = given if isinstance(given, list) else [None]
    if not several:
        raise ValueError("it is empty")
    lists = isinstance(several[0], list)
    if not (
        all(isinstance(one, str) for one in several)
        or _are_ids(several)
        or (lists and all(isinstance(one, list) and _are_ids(one) for one in several))
    ):
        raise ValueError("it has to be a text, a list of texts, token ids, or lists of token ids")
    if len(several) > MOST_TEXTS and (lists or isinstance(several[0], str)):
        raise ValueError(f"{len(several)} texts are too many; at most {MOST_TEXTS}")
    for place, one in enumerate(several):
        if isinstance(one, str | list) and not one:
            raise ValueError(f"text {place} is empty")
    return given


def _are_ids(values: list[Any]) -> bool:
    return all(type(one) is int or (type(one) is float and one.is_integer()) for one in values)


INPUT = BeforeValidator(_checked)


class EmbeddingRequest(Body):
    """POST /v1/embeddings."""

    input: Annotated[str | Texts | Ids | Annotated[list[Ids], Field(fail_fast=True)], INPUT]
    model: str | None = None
    dimensions: Annotated[int, Field(ge=1, le=MOST_WHOLE), WHOLE] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    prompt_name: str | None = None
    normalize: bool | None = None
    truncate: Truncate = "none"
    truncate_prompt_tokens: MostOfText = None
    user: str | None = None


class Document(Body):
    """A document, as Jina's API takes it, too."""

    text: str


class RerankRequest(Body):
    """POST /v1/rerank, as in the APIs of Jina and Cohere."""

    query: NotEmpty
    documents: Annotated[list[str | Document], Field(min_length=1, max_length=MOST_TEXTS, fail_fast=True)]
    model: str | None = None
    top_n: Annotated[int, Field(ge=1, le=MOST_WHOLE), WHOLE] | None = None
    return_documents: bool | None = None
    truncate: Truncate = "none"
    truncate_prompt_tokens: MostOfText = None
    user: str | None = None


def texts_of(body: RerankRequest) -> list[str]:
    """The documents' texts."""
    return [one if isinstance(one, str) else one.text for one in body.documents]
