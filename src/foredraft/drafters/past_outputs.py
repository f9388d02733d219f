"""A scope's past outputs in memory: read beside the decoding, and added to as requests end."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from concurrent.futures import Future

from foredraft.drafters.store_thread import StoreThread
from foredraft.drafters.suffix_index import SEPARATOR, SuffixIndex, Tokens
from foredraft.drafters.suffix_store import SuffixStore

PAST_LEVELS = (2, 8)


class PastOutputs:
    """The store of a scope and the index over what it holds.

    A file is read and indexed on `thread`; where there is none, the index is there at once. Until then
    `index` is None, and what is added comes after what is read.
    """

    def __init__(self, store: SuffixStore, thread: StoreThread) -> None:
        self.store = store
        self._index: SuffixIndex | None = None
        self._reading: Future[SuffixIndex] | None = None
        self._added: list[Sequence[int]] = []
        if thread.idle and store.missing:
            self._index = _indexed(())
        else:
            self._reading = thread.read(store, _indexed)

    @property
    def index(self) -> SuffixIndex | None:
        """The index, or None while it is being read. Raises what kept it from being made, MemoryError."""
        if self._reading is not None and self._reading.done():
            self._index, self._reading = self._reading.result(), None
            for output in self._added:
                self._append(self._index, output)
            self._added.clear()
        return self._index

    def add(self, output: Sequence[int]) -> None:
        """The end of a prompt and its answer; they are written when the store is."""
        self.store.add(output)
        index = self.index
        if index is None:
            self._added.append(output)
        else:
            self._append(index, output)

    def abandon(self) -> None:
        """Nobody is going to ask for the index: it is not read if that has not begun."""
        if self._reading is not None:
            self._reading.cancel()

    def _append(self, index: SuffixIndex, output: Sequence[int]) -> None:
        index.extend([SEPARATOR, *output])
        bound = self.store.max_tokens
        if len(index) > bound + bound // 4:
            newest = index.text[-bound * 3 // 4 :]
            self._index = _indexed(array("i", [SEPARATOR]) + newest)


def _indexed(text: Tokens | Sequence[int]) -> SuffixIndex:
    return SuffixIndex(PAST_LEVELS, text)
