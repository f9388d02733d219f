"""An embedding model or reranker without weights: what a text's vector is depends on its bytes alone."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from zlib import crc32

import numpy as np

from foredraft.embedding import EmbedderTraits, Encoded, ModelKind, Vectors
from foredraft.errors import BackendError
from foredraft.testing import FakeTokenizer
from foredraft.types import ModelInfo

FAILS = "fail"
"""A text that cannot be computed."""


class FakeEmbedder:
    """An Embedder with a token for each byte, and one at the end. Each computation waits until `go` is set;
    `batches` are the texts of each.
    """

    def __init__(
        self, kind: ModelKind = "embedding", *, size_bytes: int = 1000, most_tokens: int = 512
    ) -> None:
        dimensions = 4 if kind == "embedding" else 1
        self.traits = EmbedderTraits(
            kind=kind, dimensions=dimensions, most_tokens=most_tokens, pooling="mean"
        )
        self.tokenizer = FakeTokenizer()
        self.info = ModelInfo(
            name="fake",
            path="fake",
            architecture="fake",
            file_hash="",
            vocab_size=258,
            vocab_hash="",
            context_length=most_tokens,
            trained_context=most_tokens,
            parameters=1,
            size_bytes=size_bytes,
            backend="fake",
            device="cpu",
            quantization="none",
            settings={},
        )
        self.batches: list[list[str]] = []
        self.go = threading.Event()
        self.go.set()
        self.closed = False

    def encode(self, text: str) -> Encoded:
        return Encoded([*text.encode("utf-8", "replace"), 256], tail=1)

    def encode_pair(self, query: str, document: str) -> Encoded:
        head = [*query.encode("utf-8", "replace"), 256]
        return Encoded([*head, *document.encode("utf-8", "replace"), 256], head=len(head), tail=1)

    def compute(self, texts: Sequence[Encoded]) -> Vectors:
        self.batches.append([bytes(token for token in text.tokens if token < 256).decode() for text in texts])
        self.go.wait(20)
        if FAILS in self.batches[-1]:
            raise BackendError("This text cannot be computed.")
        return np.stack([self._vector(text) for text in texts])

    def _vector(self, text: Encoded) -> Vectors:
        rng = np.random.default_rng(crc32(bytes(str(list(text.tokens)), "ascii")))
        return rng.standard_normal(self.traits.dimensions, np.float32)

    def close(self) -> None:
        self.closed = True
