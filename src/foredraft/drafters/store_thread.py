"""Reads and writes past outputs in the background, so that no round waits for a slow disk, a compaction, or
the indexing of a million tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

from foredraft.drafters.suffix_index import Tokens
from foredraft.drafters.suffix_store import SuffixStore

Made = TypeVar("Made")


class StoreThread:
    """One thread, started on first use. It does its work strictly in order, so that outputs whose writing was
    submitted before a read are part of what is read.
    """

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._pending: list[Future[Any]] = []

    @property
    def idle(self) -> bool:
        """Whether all submitted work is done."""
        self._drop_done()
        return not self._pending

    def read(self, store: SuffixStore, make: Callable[[Tokens], Made]) -> Future[Made]:
        """Load the store's tokens and return the result of `make` on them, computed on the thread."""
        return self._submit(lambda: make(store.load()))

    def write(self, store: SuffixStore) -> None:
        """Write the outputs that the store has queued so far. Failures are logged by the store."""
        records = store.take()
        if records:
            self._submit(lambda: store.write(records))

    def wait(self) -> None:
        """Wait until all submitted work is done."""
        wait(self._pending)
        self._pending.clear()

    def close(self) -> None:
        """Wait for the work and end the thread; work submitted later starts another."""
        self.wait()
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None

    def _submit(self, work: Callable[[], Made]) -> Future[Made]:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="foredraft-store")
        try:
            future = self._thread.submit(work)
        except RuntimeError:  # the interpreter is ending, and its threads have ended
            future = Future()
            future.set_result(work())
        self._drop_done()
        self._pending.append(future)
        return future

    def _drop_done(self) -> None:
        """Drop finished results: an index takes 50 MB."""
        self._pending = [future for future in self._pending if not future.done()]
