"""Prefixes kept on disk: which are worth saving and reading back, which are there, and their bound on size.

The KV cells of a sequence that has to make room are written to a file, and read back for a prompt that begins
with the same text. A thread reads and another writes, so that a slow disk delays no round. The files are a
cache: nothing here raises for what is on the disk. A file that cannot be used is logged and removed.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import cast

import numpy as np

from foredraft.engine.prefix import file_format
from foredraft.engine.prefix.file_format import Identity, Tokens, UnusableError
from foredraft.errors import BackendError, ForedraftError
from foredraft.files import write_atomically
from foredraft.images import before_run
from foredraft.protocols import Model
from foredraft.types import Rollback, Timings

MIN_TOKENS = 64
"""Shorter prefixes are computed again. Beside running streams a prompt is read 64 tokens a round, so a
shorter prefix saves less than a round. Without them the default model computes 64 tokens in 0.4 s on one
core and reads their 1.5 MB back in 1 ms: that hardly shows, and many small files would crowd out what does.
"""

MAX_RELATIVE_COST = 0.8
"""Cells are read back if that is expected to take at most this share of computing them."""

MAX_PENDING_WRITES = 2
"""Prefixes that may wait to be written. Each is as large as a sequence's KV cache, in memory."""

STALE_S = 3600.0
"""A file that has been in writing for this long was left behind by a crash."""

logger = logging.getLogger(__name__)


def open_disk(
    model: Model, cache_dir: Path, max_bytes: int, *, clock: Callable[[], float] = perf_counter
) -> PrefixDisk | None:
    """The prefixes of a model on disk; None where nothing may be kept, or the backend has no form for it."""
    if not max_bytes:
        return None
    capabilities = model.capabilities
    if not capabilities.snapshot_key:
        logger.warning("%s cannot write its KV cache to a disk: prefixes are not kept.", model.info.backend)
        return None
    store = PrefixStore(
        file_format.prefixes_dir(cache_dir),
        capabilities.snapshot_key,
        max_bytes=max_bytes,
        min_tokens=MIN_TOKENS,
        reaches=capabilities.copy_reaches,
        clock=clock,
    )
    return PrefixDisk(model, store, clock=clock)


# --- what is worth saving and reading back -------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Fetch:
    """A prefix that is being read, and how many of its tokens are wanted."""

    stored: Stored
    shared: int
    reading: Future[Cells]

    @property
    def done(self) -> bool:
        """Whether it has been read, or cannot be."""
        return self.reading.done()

    def cancel(self) -> None:
        """It is not wanted any more."""
        self.reading.cancel()


class PrefixDisk:
    """Saves sequences of `model` that must make room, and restores them. `clock` gives seconds."""

    def __init__(
        self, model: Model, store: PrefixStore, *, clock: Callable[[], float] = perf_counter
    ) -> None:
        self.costs = PrefixCosts()
        self._model = model
        self._whole = model.capabilities.rollback is not Rollback.TRUNCATE
        self._store = store
        self._clock = clock

    def fetch(self, tokens: Sequence[int], scope: str, held: int) -> Fetch | None:
        """Begin to read what the disk has of `tokens`, where that beats computing on from `held` cells."""
        found = self._store.find(tokens, scope)
        if found is None or not found[0].ready:
            return None
        stored, shared = found
        if not self.costs.pays(shared - held, len(stored.tokens)):
            return None
        return Fetch(stored, shared, self._store.read(stored))

    def restore(self, seq: int, fetch: Fetch) -> bool:
        """Leave the wanted tokens of a prefix in a sequence. False: the sequence is as it was.

        Raises ForedraftError where the cells cannot be used; the sequence is then undefined.
        """
        stored, shared = fetch.stored, fetch.shared
        cells = self._store.load(stored, fetch.reading)
        if cells is None:
            return False
        began, count = self._clock(), len(stored.tokens)
        try:
            self._model.restore(seq, cells.data)
            if self._model.length(seq) != count:
                raise BackendError(f"A stored prefix holds {self._model.length(seq)} tokens, not {count}.")
            self._model.truncate(seq, shared)
        except ForedraftError:
            self._store.remove(stored)
            raise
        self.costs.restored(count, cells.seconds + self._clock() - began)
        return True

    def save(
        self, seq: int, tokens: Sequence[int], scope: str, *, kept: int = 0, prompt_only: bool = False
    ) -> None:
        """Save a sequence that holds `tokens` and has to make room for all but the first `kept`, unless
        (nearly) all of it is saved already. `prompt_only`: the tokens are a prompt without any answer. The
        sequence may be shorter afterwards.
        """
        found = self._store.find(tokens, scope)
        if len(tokens) - max(kept, found[1] if found else 0) < MIN_TOKENS:
            return
        if not self._store.keeps_up or not self.costs.pays(len(tokens), len(tokens)):
            return
        try:
            if prompt_only and self._whole:
                tokens = tokens[: self._cut_before_end(seq, tokens)]
            cells = cast("bytearray", self._model.snapshot(seq))
        except (ForedraftError, MemoryError) as error:
            logger.warning("A sequence could not be saved: %s", error)
            return
        self._store.save(tokens, scope, cells)

    def _cut_before_end(self, seq: int, tokens: Sequence[int]) -> int:
        """Cut a prompt that, restored, could not be cut: its last token is computed whenever it is asked
        again, and all of it would have to be where the state already contains that token. Returns how many
        tokens are left; all are where the model cannot go back by so few.
        """
        length = len(tokens)
        for shorter in (length - 1, self._model.reachable(seq, length - 1)):
            if before_run(tokens, shorter) < shorter:
                continue
            if shorter < MIN_TOKENS or length - shorter >= MIN_TOKENS:
                continue
            try:
                self._model.truncate(seq, shorter)
            except BackendError:
                continue
            return shorter
        return length

    def observe(self, timings: Timings) -> None:
        """Learn the cost of computing a prompt from an answer's timings."""
        self.costs.computed(timings.prompt_n, timings.prompt_ms / 1e3)

    def flush(self) -> None:
        """Return when everything that was saved is on the disk."""
        self._store.flush()

    def close(self) -> None:
        """`flush`, and end the threads that read and write."""
        self._store.close()


class PrefixCosts:
    """Whether reading cells back beats computing them: measured here, on this disk and this device.

    A fast GPU computes a prompt sooner than some disks give its cells back. Computing is taken at the best
    rate that was seen, since what else ran at the time slows it down; reading back at the median of the last
    few. What was not measured yet is tried.
    """

    def __init__(self) -> None:
        self._computing: float | None = None
        self._restoring: deque[float] = deque(maxlen=5)

    def computed(self, tokens: int, seconds: float) -> None:
        """A prompt of `tokens` was computed."""
        if tokens >= MIN_TOKENS and seconds > 0:
            rate = seconds / tokens
            self._computing = rate if self._computing is None else min(rate, self._computing)

    def restored(self, tokens: int, seconds: float) -> None:
        """The cells of `tokens` were read back."""
        self._restoring.append(seconds / tokens)

    def pays(self, gained: int, tokens: int) -> bool:
        """Whether to read `tokens` cells back in order not to compute `gained`."""
        if gained < MIN_TOKENS:
            return False
        if self._computing is None or not self._restoring:
            return True
        return tokens * median(self._restoring) <= MAX_RELATIVE_COST * gained * self._computing


# --- which prefixes are there --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cells:
    """The cells of a prefix, checked, and how long reading them took."""

    data: bytearray
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """A prefix on disk, or being written to it. `tokens` are those whose cells it holds."""

    path: Path
    identity: Identity
    tokens: Tokens
    written: Future[None] | None = None

    @property
    def ready(self) -> bool:
        """Whether its file is there to be read, as far as is known."""
        return self.written is None or self.written.done()


class PrefixStore:
    """The prefixes in `folder` that a model with this `key` can use, found by their text.

    Only prefixes that share `min_tokens` with a text are found. `reaches` says whether a stored prefix of so
    many tokens can be cut to a shorter one (`Capabilities.copy_reaches`). `max_bytes` bounds the files of all
    models together. What another process adds is seen at the next start. `clock` gives seconds.
    """

    def __init__(
        self,
        folder: Path,
        key: str,
        *,
        max_bytes: int,
        min_tokens: int,
        reaches: Callable[[int, int], bool],
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._folder = folder
        self._model = file_format.digest(key)
        self._min_tokens = min_tokens
        self._reaches = reaches
        self._clock = clock
        self._known: dict[tuple[bytes, bytes], list[Stored]] = {}
        self._writer = PrefixWriter(folder, max_bytes)
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="foredraft-prefix-read")
        self._scan()
        self._writer.tidy()

    def find(self, tokens: Sequence[int], scope: str) -> tuple[Stored, int] | None:
        """(the prefix of this scope that shares most with `tokens`, how many); None if fewer than
        `min_tokens`.
        """
        wanted = file_format.as_tokens(tokens)
        near = self._known.get(self._place(file_format.digest(scope), wanted), [])
        shared = [(self._shared(stored.tokens, wanted), stored) for stored in near]
        if not shared:
            return None
        most, best = max(shared, key=lambda entry: entry[0])
        return (best, most) if most >= self._min_tokens else None

    def read(self, stored: Stored) -> Future[Cells]:
        """Begin to read the cells of a prefix, for `load`."""
        return self._reader.submit(self._read, stored)

    def _read(self, stored: Stored) -> Cells:
        began = self._clock()
        data = file_format.read(stored.path, stored.identity, stored.tokens)
        return Cells(data, self._clock() - began)

    def load(self, stored: Stored, reading: Future[Cells]) -> Cells | None:
        """Wait for what was read of a prefix; None where that failed, which is logged."""
        try:
            cells = reading.result()
        except FileNotFoundError:  # it made room for another since
            self._forget(stored)
            return None
        except UnusableError as error:
            logger.warning("Removing the stored prefix %s: it %s.", stored.path, error)
            self.remove(stored)
            return None
        except (OSError, MemoryError) as error:
            reason = getattr(error, "strerror", None) or error or "it does not fit in memory"
            logger.warning("The stored prefix %s cannot be read: %s.", stored.path, reason)
            self._forget(stored)
            return None
        self._writer.touch(stored.path)
        return cells

    @property
    def keeps_up(self) -> bool:
        """Whether another prefix may be saved; false while earlier ones are still being written."""
        return self._writer.keeps_up

    def save(self, tokens: Sequence[int], scope: str, cells: bytearray) -> None:
        """Begin to write a prefix, in place of those that it continues. `cells` belongs to the store now."""
        identity = Identity(self._model, file_format.digest(scope))
        kept = file_format.as_tokens(tokens)
        path = self._folder / file_format.name_of(identity, kept)
        known = self._known.setdefault(self._place(identity.scope, kept), [])
        replaced = [old.path for old in known if self._replaces(kept, old.tokens)]
        written = self._writer.write(path, identity, kept, cells, replaced)
        known[:] = [old for old in known if old.path not in (path, *replaced)]
        known.append(Stored(path, identity, kept, written))

    def remove(self, stored: Stored) -> None:
        """Remove a prefix that is of no use."""
        self._forget(stored)
        self._writer.remove(stored.path)

    def flush(self) -> None:
        """Return when everything that was saved is on the disk."""
        self._writer.flush()

    def close(self) -> None:
        """`flush`, and end the threads. What is not being read yet is not read. May be called twice."""
        self._reader.shutdown(cancel_futures=True)
        self._writer.close()

    def _scan(self) -> None:
        """List the prefixes of this model."""
        try:
            for path in file_format.files(self._folder, self._model):
                self._add(path)
        except OSError as error:
            logger.warning("Stored prefixes cannot be read: %s.", error)

    def _add(self, path: Path) -> None:
        try:
            header = file_format.read_header(path)
            if path.name != file_format.name_of(header.identity, header.tokens):
                raise UnusableError("is another prefix than its name says")
            if header.identity.model != self._model:
                raise UnusableError("is of another model or setting")
        except UnusableError as error:
            logger.warning("Removing the stored prefix %s: it %s.", path, error)
            self._writer.remove(path)
            return
        except OSError as error:
            logger.warning("The stored prefix %s cannot be read: %s.", path, error.strerror or error)
            return
        place = self._place(header.identity.scope, header.tokens)
        self._known.setdefault(place, []).append(Stored(path, header.identity, header.tokens))

    def _place(self, scope: bytes, tokens: Tokens) -> tuple[bytes, bytes]:
        """Where a prefix is looked up: what differs in its first tokens need not be compared."""
        return scope, tokens[: self._min_tokens].tobytes()

    def _forget(self, stored: Stored) -> None:
        known = self._known.get(self._place(stored.identity.scope, stored.tokens), [])
        if stored in known:
            known.remove(stored)

    def _shared(self, stored: Tokens, wanted: Tokens) -> int:
        """How many leading tokens of a stored prefix `wanted` can use."""
        length = min(len(stored), len(wanted))
        differs = np.flatnonzero(stored[:length] != wanted[:length])
        shared = int(differs[0]) if len(differs) else length
        return shared if self._reaches(len(stored), shared) else 0

    def _replaces(self, longer: Tokens, shorter: Tokens) -> bool:
        """Whether a prefix serves wherever a shorter one does; never where it cannot be cut to that."""
        continues = len(shorter) < len(longer) and self._shared(shorter, longer) == len(shorter)
        return continues and self._reaches(len(longer), len(shorter))


# --- changing the folder -------------------------------------------------------------------------------


class PrefixWriter:
    """One thread that writes and removes prefixes. The files of all models together take at most `max_bytes`;
    the least recently used are removed first. A file being written has another name, which is never read.
    Failures are logged.
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
        return len(self._writes) < MAX_PENDING_WRITES

    def write(
        self, path: Path, identity: Identity, tokens: Tokens, cells: bytearray, replaced: Sequence[Path]
    ) -> Future[None]:
        """Write a prefix soon, and remove those that it replaces. `cells` belongs to the writer now."""
        written = self._submit(lambda: self._write(path, identity, tokens, cells, replaced))
        self._writes.append(written)
        return written

    def touch(self, path: Path) -> None:
        """Mark a prefix as used just now."""
        self._submit(lambda: os.utime(path))

    def remove(self, path: Path) -> None:
        """Remove a file soon."""
        self._submit(lambda: path.unlink(missing_ok=True))

    def tidy(self) -> None:
        """Remove soon what crashes left behind, and what exceeds the bound, which may be a new one."""
        self._submit(self._tidy)

    def flush(self) -> None:
        """Return when everything handed in is done."""
        wait(self._jobs)

    def close(self) -> None:
        """`flush`, and end the thread. May be called twice."""
        self._thread.shutdown()

    def _submit(self, job: Callable[[], None]) -> Future[None]:
        self._jobs = [pending for pending in self._jobs if not pending.done()]
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
        content = file_format.finish(cells, identity, tokens)
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
        for path in file_format.left_behind(self.folder):
            with suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > STALE_S:
                    path.unlink()
        self._bound()

    def _bound(self) -> None:
        """Remove the least recently used files until the rest fits."""
        found = []
        for path in file_format.files(self.folder):
            with suppress(FileNotFoundError):
                facts = path.stat()
                found.append((facts.st_mtime_ns, facts.st_size, path))
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= self.max_bytes:
                return
            path.unlink(missing_ok=True)
            total -= size
