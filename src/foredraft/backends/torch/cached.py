"""What is left: transformers' forward over transformers' own cache, one sequence after the other.

For architectures that do not let the attention function be named: older ones (BLOOM, MPT; GPT-J before
transformers 5.24), and those with a recurrent state of which we have no kernels. Such a state cannot be
rolled back: only whole copies can be kept, and nothing is drafted.
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
from foredraft.errors import BackendError, UnsupportedModelError

CACHE_NAMES = ("cache", "past_key_values", "cache_params")
"""What a model's forward calls its cache: `cache` since transformers 5.24, by its kind before that."""
_CANNOT = "This model cannot take back part of a sequence; restore a snapshot instead."


class OwnCaches:
    """A cache of transformers for each sequence, of at most `context_length` tokens. `croppable`: whether the
    last tokens can be taken back.
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
        """Whether snapshots are bytes, of use to another process."""
        return self._bytes is not None

    def learn(self, length: int) -> None:
        """Learn what a cache looks like from that of the first sequence, of so many tokens, which goes."""
        if can_be_bytes(self.held[0], length):
            self._bytes = CacheBytes(self.held[0])
        self.release(0)

    def _empty(self) -> Any:
        return DynamicCache(config=self._config)

    def of(self, seq: int) -> Any:
        """The sequence's cache, to be computed with."""
        if self.held[seq] is None:
            self.held[seq] = self._empty()
        return self.held[seq]

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
        """Keep a chain of rows. Raises BackendError for a tree's."""
        if list(path) != list(range(len(path))):
            raise BackendError("This model verifies chains only.")
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
        """Put a snapshot back, into any sequence. Raises BackendError, leaving the sequence empty, where it
        is not one of this model in this context length.
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

    def close(self) -> None:
        """Free every cache."""
        self.held = [None] * len(self.held)


def _name_of_cache(source: Any, accepted: Mapping[str, Any]) -> str:
    """Raises UnsupportedModelError where the model names its cache as none that we know of does."""
    name = next((name for name in CACHE_NAMES if name in accepted), None)
    if name is None:
        raise UnsupportedModelError(
            f"{type(source).__name__} of transformers {transformers.__version__} takes no cache by a name "
            f"that Foredraft knows ({', '.join(CACHE_NAMES)}).",
            hint=AS_GGUF,
        )
    return name


class CachedForward:
    """Computes a batch sequence by sequence with transformers' model `source`.

    `one_by_one`: rows that follow others are computed singly. Some recurrent models begin anew otherwise.
    """

    def __init__(self, source: Any, caches: OwnCaches) -> None:
        self._source, self._caches = source, caches
        self.one_by_one = False
        accepted = inspect.signature(source.forward).parameters
        self._cache_name = _name_of_cache(source, accepted)
        self._keeps = "logits_to_keep" in accepted

    def __call__(self, batch: Batch) -> Any:
        """Logits of the wanted rows, shape (rows wanted, vocabulary)."""
        logits: dict[int, Any] = {}
        wanted = batch.wanted.tolist()
        for segment in batch.segments:
            if segment.parents:
                raise BackendError("This model verifies chains only.")
            asked = sum(segment.first <= row < segment.end for row in wanted)  # its last rows
            step = 1 if self.one_by_one and segment.start else segment.count
            parts = range(segment.first, segment.end, step)
            rows = torch.cat([self._compute(batch.tokens[i : i + step], segment.seq, asked) for i in parts])
            logits.update({segment.end - asked + i: rows[len(rows) - asked + i] for i in range(asked)})
        return torch.stack([logits[row] for row in wanted]) if wanted else rows[:0]

    def _compute(self, tokens: Any, seq: int, asked: int) -> Any:
        """Logits of at least the last `asked` rows, if there are so many."""
        output = self._source(
            input_ids=tokens[None],
            use_cache=True,
            **{self._cache_name: self._caches.of(seq)},
            **({"logits_to_keep": max(1, asked)} if self._keeps else {}),
        )
        return output.logits[0]

    def close(self) -> None:
        """Free the weights."""
        self._source = None
