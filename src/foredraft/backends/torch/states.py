"""The recurrent states of a model's sequences, after each of the last rows.

A new state is a new tensor, and the one before it stays unchanged. So rolling back drops the newest states,
and a checkpoint is a few references; the cost is memory: the states after the rows of a sequence's last
forward are kept until its next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from foredraft.backends.torch.batch import Batch
from foredraft.backends.torch.kv import KVCache
from foredraft.backends.torch.model import VERIFY_ROWS
from foredraft.errors import BackendError

SHARE = 1 / 4
"""Maximum size of the kept states of all sequences, relative to the weights."""

MOST = VERIFY_ROWS - 1
"""Maximum kept states of a sequence: one for each row that can be rejected."""

Versions: TypeAlias = Sequence[Any]
"""A kernel's states of a sequence, oldest first: the state before the rows, then the one after each of them;
all but the newest may be left out.
"""

Advance: TypeAlias = Callable[[Any, int, int, int], tuple[Any, Versions]]
"""(state before or None, first row, one past the last, versions to keep) to (the rows' output, versions)."""


@dataclass(frozen=True, slots=True)
class _Form:
    """What a kernel's state looks like."""

    shape: Any
    dtype: Any
    device: Any

    @property
    def bytes(self) -> int:
        return int(self.shape.numel()) * int(self.dtype.itemsize)

    def read(self, snapshot: bytearray, at: int) -> Any:
        """A state of its own, from the bytes at a place."""
        raw = torch.frombuffer(snapshot, dtype=torch.uint8, count=self.bytes, offset=at)
        return raw.clone().view(self.dtype).view(self.shape).to(self.device)


class States:
    """Cells for attention, and beside them the state of every recurrent kernel, which are told apart by the
    order in which a forward calls them.
    """

    durable = True

    def __init__(self, kv: KVCache) -> None:
        self.lengths = kv.lengths
        self.kept = 0
        self._kv = kv
        self._versions: list[list[Versions]] = [[] for _ in kv.lengths]
        self._batch: Batch | None = None
        self._made: dict[int, list[Versions]] = {}
        self._before: dict[int, list[Versions]] = {}
        """The states before a forward that is over, until its rows are the sequence's."""
        self._forms: list[_Form] = []

    # --- a forward -------------------------------------------------------------------------------------

    def begin(self, batch: Batch) -> None:
        """The kernels are about to be called for these rows."""
        self._batch, self._before = batch, {}
        self._made = {segment.seq: [] for segment in batch.segments}

    def commit(self) -> None:
        """The forward is over: its states are the sequences'."""
        for seq, made in self._made.items():
            self._before[seq], self._versions[seq] = self._versions[seq], made
        self._batch, self._made = None, {}

    def extend(self, seq: int, rows: int) -> None:
        """As `KVCache.extend`."""
        self._kv.extend(seq, rows)
        self._before.pop(seq, None)

    def advance(self, step: Advance) -> Any:
        """Call a kernel for each sequence; its outputs, one behind the other."""
        batch = self._batch
        assert batch is not None, "kernels are only called in a forward"
        outputs = []
        for segment in batch.segments:
            made, held = self._made[segment.seq], self._versions[segment.seq]
            before = held[len(made)][-1] if segment.start else None
            output, versions = step(before, segment.first, segment.end, self.kept + 1)
            made.append(versions)
            outputs.append(output)
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    # --- what a sequence holds -------------------------------------------------------------------------

    def keep(self, weights: int) -> None:
        """Decide how many states to keep, for weights of this size in bytes. The first sequence holds one."""
        self._forms = [_Form(state.shape, state.dtype, state.device) for state in self._newest(0)]
        self.kept = max(1, min(MOST, int(SHARE * weights / (self._size * len(self.lengths)))))

    @property
    def _size(self) -> int:
        """The bytes of a sequence's state, that of all kernels."""
        return sum(form.bytes for form in self._forms)

    def describe(self) -> str:
        """How rejected rows are taken back."""
        again = "the one from before the draft is put back, and accepted tokens are computed again"
        return f"{self.kept} recurrent states are kept; if more rows are rejected, {again}"

    def spare(self, seq: int) -> int:
        """How many of the sequence's last rows can be taken back."""
        return min((len(versions) for versions in self._versions[seq]), default=1) - 1

    def _newest(self, seq: int) -> Iterator[Any]:
        return (versions[-1] for versions in self._versions[seq])

    def checkpoint(self, seq: int) -> object:
        """The states as they are now, which nothing will write to."""
        return tuple(self._newest(seq))

    def rewind(self, seq: int, checkpoint: Any, length: int) -> None:
        """Put a checkpoint's states back, and cut what attention holds to the same place."""
        self._versions[seq] = [[state] for state in checkpoint]
        self._kv.truncate(seq, length)

    def truncate(self, seq: int, length: int) -> None:
        """Keep the first `length` tokens. Raises BackendError where no state is kept from there."""
        if length == 0:
            self.release(seq)
            return
        dropped = self.lengths[seq] - length
        if dropped > self.spare(seq):
            raise BackendError(
                f"{dropped} tokens of sequence {seq} cannot be taken back: it has a recurrent state."
            )
        self._kv.truncate(seq, length)
        if dropped:
            self._versions[seq] = [versions[:-dropped] for versions in self._versions[seq]]

    def keep_path(self, seq: int, start: int, path: Sequence[int]) -> None:
        """Keep a chain of rows. Raises BackendError for a tree's."""
        if list(path) != list(range(len(path))):
            raise BackendError("A model with a recurrent state keeps chains only.")
        self.truncate(seq, start + len(path))

    def fork(self, src: int, dst: int, length: int) -> None:
        """Replace `dst` by the first `length` tokens of `src`."""
        if length == 0:
            self.release(dst)
            return
        if src != dst:
            self._kv.fork(src, dst, self.lengths[src])
            self._versions[dst] = list(self._versions[src])
        self.truncate(dst, length)

    def snapshot(self, seq: int) -> bytearray:
        """The sequence's cells, then its state, kernel by kernel (zeros where it is empty)."""
        saved = self._kv.snapshot(seq)
        if not self.lengths[seq]:
            saved += bytes(self._size)
            return saved
        for state in self._newest(seq):
            saved += state.contiguous().flatten().view(torch.uint8).cpu().numpy().data
        return saved

    def restore(self, seq: int, snapshot: object) -> None:
        """Put a snapshot back, into any sequence. Raises BackendError, leaving the sequence empty, where it
        is not one of this model in this context length.
        """
        self.release(seq)
        if not isinstance(snapshot, bytearray):
            raise BackendError("This is not a snapshot of this model.")
        at = max(0, len(snapshot) - self._size)
        self._kv.restore(seq, memoryview(snapshot)[:at])
        if not self.lengths[seq]:
            return
        for form in self._forms:
            self._versions[seq].append([form.read(snapshot, at)])
            at += form.bytes

    def release(self, seq: int) -> None:
        """Drop the sequence's cells and states."""
        self._kv.release(seq)
        self._versions[seq] = []

    def finite(self, seq: int) -> bool:
        """As `KVCache.finite`."""
        return self._kv.finite(seq)

    def wipe(self, seq: int) -> None:
        """As `KVCache.wipe`; a state is never written over."""
        self._kv.wipe(seq)

    def undo(self, seq: int) -> None:
        """As `KVCache.undo`; the state is again that before the forward."""
        self._versions[seq] = self._before.pop(seq, self._versions[seq])
        self._kv.undo(seq)

    def close(self) -> None:
        """Free everything."""
        self._kv.close()
        self._versions = [[] for _ in self.lengths]


class Made:
    """The states that a kernel makes from `before` in rows `first` … `end - 1`, of which `keep` stay."""

    def __init__(self, before: Any, first: int, end: int, keep: int) -> None:
        self._first, self._kept_from = first, end - keep
        self.versions = [before] if first > self._kept_from else []

    def add(self, state: Any, row: int) -> None:
        """The state after a row."""
        if row >= self._kept_from:
            self.versions.append(state)

    def unused(self, state: Any, row: int) -> Any:
        """The state from before a row if it may be written over: a state that is not kept was made here."""
        return state if self._first < row <= self._kept_from else None
