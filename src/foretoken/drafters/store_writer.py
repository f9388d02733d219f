"""Writes past outputs beside the decoding: a slow disk, or a file to be compacted, holds no round up."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait

from foretoken.drafters.suffix_store import SuffixStore


class StoreWriter:
    """One thread, begun when there is something to write. A write appends all that its store has queued."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._pending: list[Future[None]] = []

    def write(self, store: SuffixStore) -> None:
        """Write soon what the store has queued. A failure is logged by the store."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="foretoken-store")
        self._pending = [write for write in self._pending if not write.done()]
        self._pending.append(self._thread.submit(store.flush))

    def wait(self) -> None:
        """Return when everything handed in is on the disk."""
        wait(self._pending)
        self._pending.clear()

    def close(self) -> None:
        """`wait`, and end the thread; the next write begins another."""
        self.wait()
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None
