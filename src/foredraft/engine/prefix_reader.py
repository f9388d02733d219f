"""Reads prefixes beside the decoding: a slow disk, and the checksum of gigabytes, hold no round up."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from foredraft.engine import prefix_file
from foredraft.engine.prefix_file import Identity, Tokens


@dataclass(frozen=True, slots=True)
class Cells:
    """The cells of a prefix, checked, and how long reading them took."""

    data: bytearray
    seconds: float


class PrefixReader:
    """One thread that reads prefixes, in the order in which they are asked for. `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="foredraft-prefix-read")
        self._clock = clock

    def read(self, path: Path, identity: Identity, tokens: Tokens) -> Future[Cells]:
        """The cells soon. Its result raises what `prefix_file.read` raises, and MemoryError."""
        return self._thread.submit(self._read, path, identity, tokens)

    def close(self) -> None:
        """End the thread: what it has not begun is not read. May be called twice."""
        self._thread.shutdown(cancel_futures=True)

    def _read(self, path: Path, identity: Identity, tokens: Tokens) -> Cells:
        began = self._clock()
        data = prefix_file.read(path, identity, tokens)
        return Cells(data, self._clock() - began)
