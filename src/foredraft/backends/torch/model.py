"""A loaded transformers model as a `Model`: forwards over our own KV cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, cast
from weakref import WeakSet

import numpy as np
import torch

from foredraft.backends.bounds import check_batch, not_kept, not_numbers, rows_of, spoiled
from foredraft.backends.torch.adapters import Adapters
from foredraft.backends.torch.batch import Batch, make_batch, side_by_side
from foredraft.backends.torch.features import Trunk
from foredraft.backends.torch.sdpa_kernels import attention_kernels
from foredraft.backends.torch.tokenizer import TorchTokenizer
from foredraft.errors import BackendError, CapacityError, UnsupportedModelError, first_line
from foredraft.protocols import Head, Vision
from foredraft.types import Capabilities, Features, Logits, ModelInfo, Rollback, Rows

VERIFY_ROWS = 63
"""Maximum rows of one sequence in a verifying forward if the probe found no larger exact number."""


class Cells(Protocol):
    """The cache of a forward: `lengths` in tokens, and the operations of `protocols.Model` on sequences.
    `extend` is called for rows that a forward has computed, `undo` for a sequence of one that failed half
    way, after which nothing of it can be read. `wipe` overwrites what a sequence has dropped.
    """

    lengths: list[int]

    @property
    def durable(self) -> bool:
        """Whether snapshots are bytes that another process can restore."""
        ...

    def extend(self, seq: int, rows: int) -> None: ...
    def truncate(self, seq: int, length: int) -> None: ...
    def keep_path(self, seq: int, start: int, path: Sequence[int]) -> None: ...
    def fork(self, src: int, dst: int, length: int) -> None: ...
    def snapshot(self, seq: int) -> object: ...
    def restore(self, seq: int, snapshot: Any) -> None: ...
    def release(self, seq: int) -> None: ...
    def finite(self, seq: int) -> bool: ...
    def wipe(self, seq: int) -> None: ...
    def undo(self, seq: int) -> None: ...
    def close(self) -> None: ...


class Forward(Protocol):
    """Computes a batch: logits of the wanted rows, shape (rows wanted, vocabulary)."""

    def __call__(self, batch: Batch) -> Any: ...
    def close(self) -> None:
        """Free the weights."""
        ...


class TorchModel:
    """Owns a forward and its cache.

    It computes with the number of threads that torch had when it was created: the summation order of products
    was measured with that number. In torch it belongs to a thread of the process, and another model may have
    changed it since.
    """

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
        watch: tuple[str, ...] = (),
        trunk: Trunk | None = None,
        adapters: Adapters | None = None,
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
            features=watch,
            feature_size=int(trunk.config.get_text_config().hidden_size) if watch and trunk else 0,
        )
        self._trunk = trunk
        self._adapters = adapters
        self._adapted = [""] * len(cache.lengths)
        self._spoiled: set[int] = set()
        """Sequences whose cells are not all numbers."""
        self._unseen: set[int] = set()
        """Sequences with cells that no logits have come of: they may not be numbers either."""
        self._features: Any = None
        self._heads: WeakSet[Head] = WeakSet()
        self._forward = forward
        self._cache = cache
        self._device = device
        self._threads = torch.get_num_threads()
        self._closed = False

    def with_capabilities(self, **changes: Any) -> TorchModel:
        """Record the measured capabilities."""
        self.capabilities = replace(self.capabilities, **changes)
        return self

    @property
    def vision(self) -> Vision | None:
        return None

    @property
    def adapters(self) -> Mapping[str, str]:
        return {} if self._adapters is None else self._adapters.keys

    def adapt(self, seq: int, adapter: str) -> None:
        if self._cache.lengths[seq]:
            raise BackendError(f"Sequence {seq} holds cells, so its adapter cannot be changed.")
        if adapter and adapter not in self.adapters:
            raise BackendError(f"{self.info.name} was loaded without an adapter {adapter}.")
        self._adapted[seq] = adapter

    @property
    def idle_threads(self) -> int:
        return 0

    def forward(self, batch: Sequence[Rows]) -> Logits:
        if self._closed:
            raise BackendError(f"The model {self.info.name} is closed.", hint="Load it again.")
        self._features = None
        check_batch(
            batch,
            self._cache.lengths,
            context_length=self.info.context_length,
            max_batch=self.capabilities.max_batch,
            trees=self.capabilities.trees,
        )
        if not batch:
            self._features = torch.empty(0, len(self.capabilities.features) * self.capabilities.feature_size)
            return np.empty((0, self.info.vocab_size), np.float32)
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)
        try:
            logits, features = self._computed(batch)
        except torch.OutOfMemoryError as error:
            raise CapacityError(
                f"The device has too little memory for a forward of {sum(len(r.tokens) for r in batch)} "
                f"rows ({first_line(error)}).",
                hint="Use a smaller context (--ctx) or batch, or keep fewer layers there (--gpu-layers).",
            ) from None
        except (RuntimeError, IndexError) as error:
            raise BackendError(f"torch failed to compute a forward: {error}") from error
        self._features = features
        found = cast("Logits", logits.numpy())
        self._spoiled |= spoiled(batch, not_numbers(found))
        for rows in batch:
            (self._unseen.discard if rows.logits else self._unseen.add)(rows.seq)
        return found

    def _computed(self, batch: Sequence[Rows]) -> tuple[Any, Any]:
        """`_compute_adapted`. If it fails, the sequences are as before, as far as they can be cut."""
        before = {rows.seq: self._cache.lengths[rows.seq] for rows in batch}
        with torch.inference_mode():
            try:
                with attention_kernels(self._device):
                    return self._compute_adapted(batch)
            except BaseException:
                with ExitStack() as each:  # also if one fails, such as on a device without memory
                    for seq, length in before.items():
                        each.callback(self._undo, seq, length)
                raise

    def _undo(self, seq: int, length: int) -> None:
        """Take back what a forward that failed has left of a sequence that had this length."""
        if self._cache.lengths[seq] > length:  # the pass of its adapter was over
            self._unseen.add(seq)
            with suppress(BackendError):
                self._cache.truncate(seq, length)
        try:
            self._cache.undo(seq)
        except BaseException:
            self._spoiled.add(seq)  # so it is overwritten once it is cut or released
            raise

    def _pass(self, batch: Sequence[Rows]) -> tuple[Any, Any]:
        """`_compute`, after which the rows are their sequences'."""
        found = self._compute(batch)
        for rows in batch:
            self._cache.extend(rows.seq, len(rows.tokens))
        return found

    def _compute_adapted(self, batch: Sequence[Rows]) -> tuple[Any, Any]:
        """`_pass`, with one for each adapter."""
        adapters, among = self._adapters, sorted({self._adapted[rows.seq] for rows in batch})
        if adapters is None:
            return self._pass(batch)
        if len(among) == 1:
            with adapters.computing(among[0]):
                return self._pass(batch)
        counts, wanted = [len(rows.tokens) for rows in batch], [rows.logits for rows in batch]
        logits = torch.empty(sum(wanted), self.info.vocab_size)
        features: Any = None
        for adapter in among:
            chosen = [i for i, rows in enumerate(batch) if self._adapted[rows.seq] == adapter]
            with adapters.computing(adapter):
                found, its = self._pass([batch[i] for i in chosen])
            logits[rows_of(chosen, wanted)] = found
            if its is not None:
                features = its.new_empty(sum(counts), its.shape[1]) if features is None else features
                features[rows_of(chosen, counts)] = its
        return logits, features

    def _compute(self, batch: Sequence[Rows]) -> tuple[Any, Any]:
        """Logits as fp32 on the processor, and the watched hidden states, if any, in the order of `batch`."""
        packed = make_batch(batch, self._device)
        logits = self._forward(packed).float().cpu()
        return logits, side_by_side(packed, batch)

    @property
    def durable(self) -> bool:
        """Whether snapshots are bytes that another process can restore."""
        return self._cache.durable

    def features(self, rows: Sequence[int] | None = None) -> Features:
        if not self.capabilities.features:
            raise BackendError(
                f"{self.info.name} was loaded without hidden states.", hint="They are asked for by `watch`."
            )
        if self._features is None:
            raise BackendError("There are no hidden states: no forward was computed.")
        chosen = self._features if rows is None else self._features[list(rows)]
        return cast("Features", chosen.float().cpu().numpy())

    def load_head(self, path: Path | None, *, sequences: int) -> Head:
        from foredraft.backends.torch.heads import load_head

        if self._closed:
            raise BackendError(f"The model {self.info.name} is closed.", hint="Load it again.")
        if self._trunk is None:
            raise UnsupportedModelError(
                f"{self.info.name} was loaded without the hidden states that a head reads.",
                hint="Name the head when the model is loaded.",
            )
        head = load_head(path, self._trunk, self.info, self.capabilities.features, sequences=sequences)
        self._heads.add(head)
        return head

    def length(self, seq: int) -> int:
        return self._cache.lengths[seq]

    def reachable(self, seq: int, length: int) -> int:
        return min(length, self.length(seq))

    def to_recompute(self, seq: int) -> int:  # noqa: ARG002
        return 0

    def truncate(self, seq: int, length: int) -> None:
        if length < self._cache.lengths[seq] and self._look(seq):
            raise not_kept(seq)
        self._cache.truncate(seq, length)
        self._wipe(seq)

    def keep_path(self, seq: int, start: int, path: Sequence[int]) -> None:
        with torch.inference_mode():
            self._cache.keep_path(seq, start, path)
        self._wipe(seq)

    def fork(self, src: int, dst: int, length: int) -> None:
        if src != dst and length <= self._cache.lengths[src]:
            if self._look(src):
                raise not_kept(src)
            self.release(dst)
        with torch.inference_mode():
            self._cache.fork(src, dst, length)

    def snapshot(self, seq: int) -> object:
        with torch.inference_mode():
            return self._cache.snapshot(seq)

    def restore(self, seq: int, snapshot: object) -> None:
        self.release(seq)
        with torch.inference_mode():
            self._cache.restore(seq, snapshot)
        self._unseen.add(seq)

    def release(self, seq: int) -> None:
        self._look(seq)
        self._cache.release(seq)
        self._wipe(seq)
        self._spoiled.discard(seq)

    def _look(self, seq: int) -> bool:
        """See whether the sequence's cells are numbers, if no logits have come of them: they are about to be
        dropped. Returns whether they turned out to be none.
        """
        if seq not in self._unseen:
            return False
        self._unseen.discard(seq)
        with torch.inference_mode():
            bad = not self._cache.finite(seq)
        if bad:
            self._spoiled.add(seq)
        return bad

    def _wipe(self, seq: int) -> None:
        """Overwrite the cells that a spoiled sequence dropped: they are still multiplied by 0."""
        if seq in self._spoiled:
            with torch.inference_mode():
                self._cache.wipe(seq)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            for head in list(self._heads):  # they use the model's ends
                head.close()
            self._heads.clear()
            self._trunk = self._features = None
            self._forward.close()
            self._cache.close()
