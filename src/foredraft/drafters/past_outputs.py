"""A scope's past outputs in memory: loaded in the background, and extended as requests end."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from concurrent.futures import Future

from foredraft.drafters.store_thread import StoreThread
from foredraft.drafters.suffix_index import SEPARATOR, SuffixIndex, Tokens
from foredraft.drafters.suffix_store import SuffixStore

PAST_LEVELS = (2, 8)


class PastOutputs:
    """The store of a scope and the index of its content.

    A file is read and indexed on `thread`; without a file, the index is available at once. Until then `index`
    is None, and added outputs come after those in the file.
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
        """The index, or None while it is being built. Raises the exception that building it raised,
        MemoryError.
        """
        if self._reading is not None and self._reading.done():
            self._index, self._reading = self._reading.result(), None
            for output in self._added:
                self._append(self._index, output)
            self._added.clear()
        return self._index

    def add(self, output: Sequence[int]) -> None:
        """Add the end of a prompt and its answer; they are written with the store."""
        self.store.add(output)
        index = self.index
        if index is None:
            self._added.append(output)
        else:
            self._append(index, output)

    def abandon(self) -> None:
        """Cancel reading the store if it has not started: the index is no longer needed."""
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
