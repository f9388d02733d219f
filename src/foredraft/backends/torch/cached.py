"""The fallback: transformers' forward with transformers' own cache, one sequence after another.

For architectures whose attention function cannot be replaced: older ones (BLOOM, MPT; GPT-J before
transformers 5.24), and those with a recurrent state for which we have no kernels. Such a state cannot be
rolled back: only complete copies can be kept, and nothing is drafted.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import transformers
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from foredraft.backends.torch.batch import Batch
from foredraft.backends.torch.cache_bytes import CacheBytes, can_be_bytes
from foredraft.backends.torch.check import AS_GGUF
from foredraft.backends.torch.features import Taps
from foredraft.errors import BackendError, UnsupportedModelError

CACHE_NAMES = ("cache", "past_key_values", "cache_params")
"""The argument's name for the cache: `cache` since transformers 5.24, by kind of cache before that."""
_CANNOT = "This model cannot roll back a part of a sequence; restore a snapshot instead."


class OwnCaches:
    """A transformers cache for each sequence, of at most `context_length` tokens. `croppable`: whether the
    last tokens can be removed.
    """

    def __init__(self, sequences: int, context_length: int, config: Any) -> None:
        self._config, self._context_length = config, context_length
        self.lengths = [0] * sequences
        self.held: list[Any] = [None] * sequences
        example = self._empty()
        self.croppable = all(type(layer) is DynamicLayer for layer in example.layers)
        self._bytes: CacheBytes | None = None

    @property
    def durable(self) -> bool:
        """Whether snapshots are bytes that another process can restore."""
        return self._bytes is not None

    def learn(self, length: int) -> None:
        """Learn a cache's form from the first sequence's, which holds `length` tokens, and release that."""
        if can_be_bytes(self.held[0], length):
            self._bytes = CacheBytes(self.held[0])
        self.release(0)

    def _empty(self) -> Any:
        return DynamicCache(config=self._config)

    def of(self, seq: int) -> Any:
        """The sequence's cache for a forward."""
        if self.held[seq] is None:
            self.held[seq] = self._empty()
        return self.held[seq]

    def extend(self, seq: int, rows: int) -> None:
        """A forward is over that computed `rows` rows of the sequence."""
        self.lengths[seq] += rows

    def truncate(self, seq: int, length: int) -> None:
        """Keep the first `length` tokens. Raises BackendError."""
        held = self.lengths[seq]
        if length > held:
            raise BackendError(f"Cannot truncate sequence {seq} to {length}: it holds {held} tokens.")
        if length == 0:
            self.release(seq)
        elif length < held:
            if not self.croppable:
                raise BackendError(_CANNOT)
            self.held[seq].crop(length - held)
            self.lengths[seq] = length

    def keep_path(self, seq: int, start: int, path: Sequence[int]) -> None:
        """Keep a chain of rows. Raises BackendError for a tree."""
        if list(path) != list(range(len(path))):
            raise BackendError("This model only verifies chains.")
        self.truncate(seq, start + len(path))

    def fork(self, src: int, dst: int, length: int) -> None:
        """Replace `dst` by the first `length` tokens of `src`. Raises BackendError."""
        if length > self.lengths[src]:
            raise BackendError(
                f"Cannot fork {length} tokens of sequence {src}: it holds {self.lengths[src]}."
            )
        if 0 < length < self.lengths[src] and not self.croppable:
            raise BackendError(_CANNOT)
        if src != dst:
            self.restore(dst, self.snapshot(src))
        self.truncate(dst, length)

    def snapshot(self, seq: int) -> object:
        """A copy of the sequence's cache."""
        if self._bytes is not None:
            return self._bytes.write(self.held[seq], self.lengths[seq])
        return self.lengths[seq], copy.deepcopy(self.held[seq])

    def restore(self, seq: int, snapshot: object) -> None:
        """Restore a snapshot into any sequence. Raises BackendError, leaving the sequence empty, if it does
        not belong to this model and context length.
        """
        self.release(seq)
        if self._bytes is not None:
            self.lengths[seq], self.held[seq] = self._bytes.read(snapshot, self._context_length)
        elif isinstance(snapshot, tuple):
            self.lengths[seq], self.held[seq] = snapshot[0], copy.deepcopy(snapshot[1])
        else:
            raise BackendError("This is not a snapshot of this model.")

    def release(self, seq: int) -> None:
        """Drop the sequence's cache."""
        self.lengths[seq], self.held[seq] = 0, None

    def finite(self, seq: int) -> bool:  # noqa: ARG002
        """Whether the sequence's cells are numbers: not known, and nothing of it stays behind."""
        return True

    def wipe(self, seq: int) -> None:
        """Nothing is left of what was dropped."""

    def undo(self, seq: int) -> None:
        """A forward with rows of the sequence failed half way: some layers may hold them. Where the last
        tokens cannot be removed, all are.
        """
        if not self.croppable or not self.lengths[seq]:
            self.release(seq)
            return
        for layer in self.held[seq].layers:
            beyond = layer.get_seq_length() - self.lengths[seq]
            if beyond > 0:
                layer.crop(-beyond)

    def close(self) -> None:
        """Free every cache."""
        self.held = [None] * len(self.held)


def _name_of_cache(source: Any, accepted: Mapping[str, Any]) -> str:
    """Raises UnsupportedModelError if the model has no known name for its cache."""
    name = next((name for name in CACHE_NAMES if name in accepted), None)
    if name is None:
        raise UnsupportedModelError(
            f"{type(source).__name__} of transformers {transformers.__version__} has no cache argument of a "
            f"known name ({', '.join(CACHE_NAMES)}).",
            hint=AS_GGUF,
        )
    return name


class CachedForward:
    """Computes a batch sequence by sequence with transformers' model `source`.

    `watch`: the hidden states that it keeps. `one_by_one`: rows after the first are computed singly, because
    some recurrent models otherwise restart.
    """

    def __init__(self, source: Any, caches: OwnCaches, watch: Sequence[str] = ()) -> None:
        self._source, self._caches = source, caches
        self.one_by_one = False
        accepted = inspect.signature(source.forward).parameters
        self._cache_name = _name_of_cache(source, accepted)
        self._keeps = "logits_to_keep" in accepted
        self._taps = Taps(source, watch) if watch else None

    def __call__(self, batch: Batch) -> Any:
        """Logits of the wanted rows, shape (rows wanted, vocabulary)."""
        logits: dict[int, Any] = {}
        kept: list[list[Any]] = []
        wanted = batch.wanted.tolist()
        for segment in batch.segments:
            if segment.parents:
                raise BackendError("This model only verifies chains.")
            asked = sum(segment.first <= row < segment.end for row in wanted)  # its last rows
            step = 1 if self.one_by_one and segment.start else segment.count
            parts = range(segment.first, segment.end, step)
            rows = torch.cat(
                [self._compute(batch.tokens[i : i + step], segment.seq, asked, kept) for i in parts]
            )
            logits.update({segment.end - asked + i: rows[len(rows) - asked + i] for i in range(asked)})
        batch.features[:] = [torch.cat(parts) for parts in zip(*kept, strict=True)]
        return torch.stack([logits[row] for row in wanted]) if wanted else rows[:0]

    def _compute(self, tokens: Any, seq: int, asked: int, kept: list[list[Any]]) -> Any:
        """Logits of at least the last `asked` rows, if there are that many; `kept` gets what is watched."""
        if self._taps is not None:
            self._taps.begin()
        output = self._source(
            input_ids=tokens[None],
            use_cache=True,
            **{self._cache_name: self._caches.of(seq)},
            **({"logits_to_keep": max(1, asked)} if self._keeps else {}),
        )
        if self._taps is not None:
            kept.append(self._taps.taken())
        return output.logits[0]

    def close(self) -> None:
        """Free the weights."""
        self._source = None
