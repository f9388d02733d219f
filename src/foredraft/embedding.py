"""The contract for models that do not generate: embedding models turn a text into a vector, rerankers a pair
of texts into a score.

They have no KV cache to keep, no tokens to draft, and no engine. `Embedder` is called from one thread, but
for its encoding of texts, which several may use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from foredraft.types import ModelInfo

ModelKind: TypeAlias = Literal["generative", "embedding", "reranker"]

Pooling: TypeAlias = Literal["mean", "cls", "last"]
"""What the vector of a text is: the mean of its tokens' vectors, the first, or the last."""

POOLINGS: tuple[Pooling, ...] = get_args(Pooling)

Scores: TypeAlias = Literal["logit", "probability", "identity"]

Side: TypeAlias = Literal["start", "end"]

Vectors: TypeAlias = npt.NDArray[np.float32]
"""Shape (texts, dimensions) of an embedding model, before normalisation; (pairs, 1) of a reranker."""


class Encoded(NamedTuple):
    """A text, or a pair of texts, as token ids with the special tokens that belong to it.

    `segments`: the token type of each token, for models that tell the texts of a pair apart by it. The first
    `head` and the last `tail` tokens stay when it is cut: special tokens, and the first text of a pair.
    """

    tokens: Sequence[int]
    segments: Sequence[int] = ()
    head: int = 0
    tail: int = 0

    def cut(self, most: int, side: Side) -> Encoded | None:
        """At most `most` tokens of it, with those at the `side` left out; None if nothing of the text, or of
        the second text, would be left.
        """
        surplus = len(self.tokens) - most
        if surplus <= 0:
            return self
        first, last = self.head, len(self.tokens) - self.tail
        if last - first <= surplus:
            return None
        gap = slice(first, first + surplus) if side == "start" else slice(last - surplus, last)
        return self._replace(tokens=_without(self.tokens, gap), segments=_without(self.segments, gap))


def _without(values: Sequence[int], gap: slice) -> list[int]:
    return [*values[: gap.start], *values[gap.stop :]]


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedderTraits:
    """What an embedder computes.

    `dimensions`: numbers of a vector. `most_tokens`: of a text with its special tokens. `pooling`: as
    `Pooling`, for reports; "rank" of a reranker. `normalized`: whether vectors are meant to have length 1.
    `scores`: what a reranker's numbers are: logits, or probabilities already; "identity": logits that its
    authors leave as they are. `prompts`: texts by name that are put in front, of which `default_prompt` is
    used if none is named. `exact`: a text's vector does not depend, bit for bit, on what is computed with it.
    """

    kind: ModelKind
    dimensions: int
    most_tokens: int
    pooling: str
    normalized: bool = True
    scores: Scores = "logit"
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str = ""
    exact: bool = True


class TextTokenizer(Protocol):
    """What a `protocols.Tokenizer` has for texts without a chat template."""

    @property
    def vocab_size(self) -> int: ...
    def encode(self, text: str, *, special: bool = False, add_bos: bool = False) -> list[int]:
        """Token ids of `text`; `special` also recognises special tokens written in it."""
        ...

    def token_bytes(self, token: int) -> bytes:
        """The bytes of a token: b"" for a control token."""
        ...


class Embedder(Protocol):
    """A loaded embedding model or reranker."""

    @property
    def info(self) -> ModelInfo: ...
    @property
    def traits(self) -> EmbedderTraits: ...
    @property
    def tokenizer(self) -> TextTokenizer: ...

    def encode(self, text: str) -> Encoded:
        """The tokens of a text. Any thread may call it."""
        ...

    def encode_pair(self, query: str, document: str) -> Encoded:
        """The tokens of a pair, whose second text is the one that may be cut. Any thread may call it."""
        ...

    def compute(self, texts: Sequence[Encoded]) -> Vectors:
        """The vectors, or scores, of some texts, each of 1 to `most_tokens` valid tokens. Raises
        BackendError, CapacityError.
        """
        ...

    def close(self) -> None:
        """Free everything. May be called twice."""
        ...
