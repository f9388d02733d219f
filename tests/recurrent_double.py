"""A fake model with a recurrent state: what is not in the contract of `Rewindable`, it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foredraft.errors import BackendError
from foredraft.testing import FakeModel
from foredraft.types import Logits, Rollback, Rows


class FakeRecurrentModel(FakeModel):
    """Goes back `bound` rows of a sequence's last forward, not the first of them, and once; or to a
    checkpoint that was not written over. `copies` and `rewinds` count checkpoints.
    """

    def __init__(self, vocab_size: int = 258, *, bound: int = 0, **settings: Any) -> None:
        super().__init__(vocab_size, trees=False, **settings)
        self.with_capabilities(rollback=Rollback.BOUNDED, rollback_bound=bound)
        self._spare: dict[int, int] = {}
        self._all: list[object] = []  # so that no identity is used twice
        self._valid: set[int] = set()
        self.copies = self.rewinds = 0

    def forward(self, batch: Sequence[Rows]) -> Logits:
        logits = super().forward(batch)
        for rows in batch:
            self._spare[rows.seq] = min(self.capabilities.rollback_bound, len(rows.tokens) - 1)
        return logits

    def spare(self, seq: int) -> int:
        return self._spare.get(seq, 0)

    def checkpoint(self, seq: int, instead_of: object = None) -> object:
        self.copies += 1
        self._valid.discard(id(instead_of))
        saved = tuple(self.tokens(seq))
        self._valid.add(id(saved))
        self._all.append(saved)
        return saved

    def rewind(self, seq: int, checkpoint: object, length: int) -> None:
        self.rewinds += 1
        assert isinstance(checkpoint, tuple)
        if id(checkpoint) not in self._valid or len(checkpoint) != length:
            raise BackendError("this checkpoint was written over, or is of another length")
        if self.tokens(seq)[:length] != list(checkpoint):
            raise BackendError("the attention cells are not those of the checkpoint")
        self._cache[seq] = list(checkpoint)
        self._spare[seq] = 0

    def truncate(self, seq: int, length: int) -> None:
        cut = self.length(seq) - length
        if length and cut > self.spare(seq):
            raise BackendError(f"{cut} tokens cannot be taken back")
        super().truncate(seq, length)
        if cut:
            self._spare[seq] = 0

    def restore(self, seq: int, snapshot: object) -> None:
        super().restore(seq, snapshot)
        self._spare[seq] = 0

    def fork(self, src: int, dst: int, length: int) -> None:
        if 0 < length < self.length(src):
            raise BackendError("only all of it can be copied")
        super().fork(src, dst, length)
        self._spare[dst] = 0

    def release(self, seq: int) -> None:
        super().release(seq)
        self._spare[seq] = 0
