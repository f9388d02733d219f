"""Changes the folder of prefixes beside the decoding: a slow disk holds no round up."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path

from foredraft.engine import prefix_file
from foredraft.engine.prefix_file import Identity, Tokens
from foredraft.files import write_atomically

WAITING = 2
"""Prefixes that may be on their way to the disk. Each is as large as a sequence's KV cache, in memory."""

STALE_S = 3600.0
"""A file that has been written for so long was left behind by a crash."""

logger = logging.getLogger(__name__)


class PrefixWriter:
    """One thread that writes and removes prefixes. Together they take at most `max_bytes`, of whichever
    model they are: those go first that were not used for longest. Failures are logged.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="foredraft-prefix")
        self._jobs: list[Future[None]] = []
        self._writes: list[Future[None]] = []

    @property
    def keeps_up(self) -> bool:
        """Whether another prefix may be handed in: more would pile up in memory."""
        self._writes = [write for write in self._writes if not write.done()]
        return len(self._writes) < WAITING

    def write(
        self, path: Path, identity: Identity, tokens: Tokens, cells: bytearray, replaced: Sequence[Path]
    ) -> Future[None]:
        """Write a prefix soon, and remove those that it replaces. `cells` belongs to the writer now."""
        written = self._do(lambda: self._write(path, identity, tokens, cells, replaced))
        self._writes.append(written)
        return written

    def touch(self, path: Path) -> None:
        """The prefix was used: others go before it."""
        self._do(lambda: os.utime(path))

    def remove(self, path: Path) -> None:
        """Remove a file soon."""
        self._do(lambda: path.unlink(missing_ok=True))

    def tidy(self) -> None:
        """Remove soon what crashes left behind, and what is over the bound, which may be a new one."""
        self._do(self._tidy)

    def flush(self) -> None:
        """Return when everything handed in is done."""
        wait(self._jobs)

    def close(self) -> None:
        """`flush`, and end the thread. May be called twice."""
        self._thread.shutdown()

    def _do(self, job: Callable[[], None]) -> Future[None]:
        self._jobs = [known for known in self._jobs if not known.done()]
        self._jobs.append(self._thread.submit(self._logged, job))
        return self._jobs[-1]

    # --- on the thread ---------------------------------------------------------------------------------

    def _logged(self, job: Callable[[], None]) -> None:
        try:
            job()
        except FileNotFoundError:  # another process, or `foredraft forget`, was faster
            pass
        except OSError as error:
            logger.warning("The prefixes in %s cannot be kept up: %s.", self.folder, error)

    def _write(
        self, path: Path, identity: Identity, tokens: Tokens, cells: bytearray, replaced: Sequence[Path]
    ) -> None:
        content = prefix_file.finish(cells, identity, tokens)
        if len(content) > self.max_bytes:
            logger.warning(
                "A prefix of %d tokens takes %d bytes and is not kept: prefix_cache_gb allows %d in all.",
                len(tokens), len(content), self.max_bytes,
            )  # fmt: skip
            return
        write_atomically(path, content, mode=0o600)
        for old in replaced:
            old.unlink(missing_ok=True)
        self._bound()

    def _tidy(self) -> None:
        for path in prefix_file.left_behind(self.folder):
            with suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > STALE_S:
                    path.unlink()
        self._bound()

    def _bound(self) -> None:
        """Remove what was not used for longest until the rest fits."""
        found = []
        for path in prefix_file.files(self.folder):
            with suppress(FileNotFoundError):
                facts = path.stat()
                found.append((facts.st_mtime_ns, facts.st_size, path))
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= self.max_bytes:
                return
            path.unlink(missing_ok=True)
            total -= size
