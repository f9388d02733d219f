"""Cells that are not numbers: they spoil every forward that reads them, also where they are masked or were
dropped long ago, as 0 × NaN is NaN. So they are overwritten once they are dropped, before the next forward.

Whether a sequence has such cells is seen by its logits. Of a prompt that is given up half way none were
returned, so a model looks at them when they are dropped, by a row more; of a head they are few, and are
overwritten unseen. (Where every layer has a window, logits are only spoiled by the last tokens, as many as a
window and a layer times each other: by all that a published model's context has.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from foredraft.backends.bounds import spoiled
from foredraft.backends.llamacpp.binding import lib
from foredraft.types import HeadRows, Rows


class SpoiledCells:
    """Which sequences of a context have such cells, as far as it is known. `stale`: some were dropped."""

    def __init__(self) -> None:
        self._among: set[int] = set()
        self._unseen: set[int] = set()
        self.stale = False

    def computed(self, batch: Sequence[Rows | HeadRows], bad: npt.NDArray[np.bool_]) -> bool:
        """A forward was computed; `bad`: which of its rows of logits are not numbers. Returns whether any."""
        for rows in batch:
            (self._unseen.discard if rows.logits else self._unseen.add)(rows.seq)
        found = spoiled(batch, bad)
        self._among |= found
        return bool(found)

    def unseen(self, seq: int) -> bool:
        """Whether the sequence has cells that no logits have come of."""
        return seq in self._unseen

    def clean(self, seq: int) -> bool:
        """Whether all its cells are numbers."""
        return seq not in self._unseen and seq not in self._among

    def looked(self, seq: int, *, bad: bool) -> None:
        """The sequence was looked at."""
        self._unseen.discard(seq)
        if bad:
            self._among.add(seq)

    def filled(self, seq: int, *, clean: bool) -> None:
        """An empty sequence got cells that were saved."""
        if not clean:
            self._unseen.add(seq)

    def dropped(self, seq: int, left: int) -> None:
        """Cells of the sequence were dropped: `left` are there, of which nothing is known if some were bad.
        What was not looked at counts as bad.
        """
        self.stale |= not self.clean(seq)
        if seq in self._among and left:
            self._unseen.add(seq)
        self._among.discard(seq)
        if not left:
            self._unseen.discard(seq)

    def wipe(
        self,
        memory: Any,
        used: Iterable[int],
        save: Callable[[int], Any],
        load: Callable[[int, Any], None],
        drop: Callable[[int], None],
    ) -> None:
        """Overwrite what was dropped. llama.cpp only overwrites all cells at once, so those of the sequences
        in use are copied. Raises what `save` and `load` do; `drop` is then called for the sequences whose
        cells are lost.
        """
        saved = {seq: save(seq) for seq in used}
        try:
            lib.llama_memory_clear(memory, True)  # noqa: FBT003 - C
            self.stale = False
            for seq in list(saved):
                load(seq, saved[seq])
                del saved[seq]
        except BaseException:
            for seq in saved:
                drop(seq)
            raise
