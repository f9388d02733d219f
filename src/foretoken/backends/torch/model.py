"""A loaded transformers model as a `Model`: forwards over our own KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol, cast

import numpy as np
import torch

from foretoken.backends.torch.batch import Batch, make_batch
from foretoken.backends.torch.tokenizer import TorchTokenizer
from foretoken.errors import BackendError, CapacityError, OutOfKVError
from foretoken.types import Capabilities, Logits, ModelInfo, Rollback, Rows

VERIFY_ROWS = 63
"""Rows of one sequence in a verifying forward where the probe found no larger number to be exact."""


class Cells(Protocol):
    """The cache of a forward: `lengths` in tokens, and what `protocols.Model` promises of its sequences."""

    lengths: list[int]

    def truncate(self, seq: int, length: int) -> None: ...
    def keep_path(self, seq: int, start: int, path: Sequence[int]) -> None: ...
    def fork(self, src: int, dst: int, length: int) -> None: ...
    def snapshot(self, seq: int) -> object: ...
    def restore(self, seq: int, snapshot: Any) -> None: ...
    def release(self, seq: int) -> None: ...
    def close(self) -> None: ...


class Forward(Protocol):
    """Computes a batch: logits of the wanted rows, shape (rows wanted, vocabulary)."""

    def __call__(self, batch: Batch) -> Any: ...
    def close(self) -> None:
        """Free the weights."""
        ...


class TorchModel:
    """Owns a forward and the cache that it computes over."""

    def __init__(
        self,
        forward: Forward,
        cache: Cells,
        tokenizer: TorchTokenizer,
        info: ModelInfo,
        *,
        device: Any,
        max_batch: int,
        rollback: Rollback = Rollback.TRUNCATE,
        trees: bool = True,
    ) -> None:
        self.tokenizer = tokenizer
        self.info = info
        self.capabilities = Capabilities(
            rollback=rollback,
            batch_invariant=False,
            invariance_note="not measured",
            max_rows=min(VERIFY_ROWS, max_batch),
            max_batch=max_batch,
            sequences=len(cache.lengths),
            trees=trees,
            fork=rollback is Rollback.TRUNCATE,
        )
        self._forward = forward
        self._cache = cache
        self._device = device
        self._closed = False

    def with_capabilities(self, **changes: Any) -> TorchModel:
        """Record what was measured about the model."""
        self.capabilities = replace(self.capabilities, **changes)
        return self

    def forward(self, batch: Sequence[Rows]) -> Logits:
        self._check(batch)
        if not batch:
            return np.empty((0, self.info.vocab_size), np.float32)
        try:
            with torch.inference_mode():
                logits = self._forward(make_batch(batch, self._device)).float().cpu()
        except torch.OutOfMemoryError as error:
            raise CapacityError(
                f"The device has not enough memory for a forward of {sum(len(r.tokens) for r in batch)} "
                f"rows ({str(error).splitlines()[0]}).",
                hint="Use a smaller context (--ctx) or batch.",
            ) from None
        except (RuntimeError, IndexError) as error:
            raise BackendError(f"torch failed to compute a forward: {error}") from error
        for rows in batch:
            self._cache.lengths[rows.seq] += len(rows.tokens)
        return cast("Logits", logits.numpy())

    def _check(self, batch: Sequence[Rows]) -> None:
        if self._closed:
            raise BackendError(f"The model {self.info.name} is closed.", hint="Load it again.")
        lengths, total = self._cache.lengths, 0
        for rows in batch:
            total += len(rows.tokens)
            if not 0 <= rows.seq < len(lengths):
                raise BackendError(f"There is no sequence {rows.seq}; there are {len(lengths)}.")
            if rows.start != lengths[rows.seq]:
                raise BackendError(
                    f"Rows of sequence {rows.seq} start at {rows.start}; its cache ends at "
                    f"{lengths[rows.seq]}."
                )
            if rows.start + len(rows.tokens) > self.info.context_length:
                raise OutOfKVError(
                    f"Sequence {rows.seq} would hold {rows.start + len(rows.tokens)} tokens; its context has "
                    f"room for {self.info.context_length}.",
                    hint="Use a larger context (--ctx).",
                )
        if total > self.capabilities.max_batch:
            raise BackendError(f"{total} rows in one forward; at most {self.capabilities.max_batch} fit.")

    def length(self, seq: int) -> int:
        return self._cache.lengths[seq]

    def reachable(self, seq: int, length: int) -> int:
        return min(length, self.length(seq))

    def owed(self, seq: int) -> int:  # noqa: ARG002
        return 0

    def truncate(self, seq: int, length: int) -> None:
        self._cache.truncate(seq, length)

    def keep_path(self, seq: int, start: int, path: Sequence[int]) -> None:
        with torch.inference_mode():
            self._cache.keep_path(seq, start, path)

    def fork(self, src: int, dst: int, length: int) -> None:
        with torch.inference_mode():
            self._cache.fork(src, dst, length)

    def snapshot(self, seq: int) -> object:
        with torch.inference_mode():
            return self._cache.snapshot(seq)

    def restore(self, seq: int, snapshot: object) -> None:
        with torch.inference_mode():
            self._cache.restore(seq, snapshot)

    def release(self, seq: int) -> None:
        self._cache.release(seq)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._forward.close()
            self._cache.close()
