"""Reads and writes past outputs beside the decoding: a slow disk, a file to be compacted, or a million tokens
to be indexed hold no round up.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

from foredraft.drafters.suffix_index import Tokens
from foredraft.drafters.suffix_store import SuffixStore

Made = TypeVar("Made")


class StoreThread:
    """One thread, begun when there is something to do. It does one thing after the other, in the order in
    which they are handed in: so what is being written when a store is to be read is read too.
    """

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._pending: list[Future[Any]] = []

    @property
    def idle(self) -> bool:
        """Whether everything handed in is done."""
        self._drop_done()
        return not self._pending

    def read(self, store: SuffixStore, make: Callable[[Tokens], Made]) -> Future[Made]:
        """What `make` makes, on the thread too, of the tokens that the store holds."""
        return self._submit(lambda: make(store.load()))

    def write(self, store: SuffixStore) -> None:
        """Write soon what the store has queued by now. A failure is logged by the store."""
        records = store.take()
        if records:
            self._submit(lambda: store.write(records))

    def wait(self) -> None:
        """Return when everything handed in is done."""
        wait(self._pending)
        self._pending.clear()

    def close(self) -> None:
        """`wait`, and end the thread; what is handed in next begins another."""
        self.wait()
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None

    def _submit(self, work: Callable[[], Made]) -> Future[Made]:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="foredraft-store")
        future = self._thread.submit(work)
        self._drop_done()
        self._pending.append(future)
        return future

    def _drop_done(self) -> None:
        """What was made is not held here: an index takes 50 MB."""
        self._pending = [future for future in self._pending if not future.done()]
