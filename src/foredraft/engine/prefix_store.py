"""Which prefixes are on disk: the KV cells of sequences that had to make room, by the text they are of.

Files are read and written by a thread of its own each. What a kill leaves of a file
being written has another name and is never read. The store is a cache: nothing here raises for what is on
the disk. A file that cannot be used is logged and removed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np

from foredraft.engine import prefix_file
from foredraft.engine.prefix_file import Identity, Tokens, UnusableError
from foredraft.engine.prefix_reader import Cells, PrefixReader
from foredraft.engine.prefix_writer import PrefixWriter

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """A prefix on disk, or on its way there. `tokens` are those whose cells it holds."""

    path: Path
    identity: Identity
    tokens: Tokens
    written: Future[None] | None = None

    @property
    def ready(self) -> bool:
        """Whether its file is there to be read, as far as we know."""
        return self.written is None or self.written.done()


class PrefixStore:
    """The prefixes in `folder` that a model with this `key` can use; `least` tokens are worth finding.

    `whole`: cells cannot be cut, so a prefix is of use only where all of it is wanted. `max_bytes` bounds
    the files of all models together. What another process adds is seen at the next start. `clock` gives
    seconds.
    """

    def __init__(
        self,
        folder: Path,
        key: str,
        *,
        max_bytes: int,
        least: int,
        whole: bool = False,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._folder = folder
        self._model = prefix_file.digest(key)
        self._least = least
        self._whole = whole
        self._known: dict[tuple[bytes, bytes], list[Stored]] = {}
        self._writer = PrefixWriter(folder, max_bytes)
        self._reader = PrefixReader(clock)
        self._scan()
        self._writer.tidy()

    def find(self, tokens: Sequence[int], scope: str) -> tuple[Stored, int] | None:
        """(the prefix of this scope that shares most with `tokens`, how many); None if fewer than `least`."""
        wanted = prefix_file.as_tokens(tokens)
        near = self._known.get(self._place(prefix_file.digest(scope), wanted), [])
        shared = [(self._shared(stored.tokens, wanted), stored) for stored in near]
        if not shared:
            return None
        most, best = max(shared, key=lambda entry: entry[0])
        return (best, most) if most >= self._least else None

    def read(self, stored: Stored) -> Future[Cells]:
        """Begin to read the cells of a prefix, for `load`."""
        return self._reader.read(stored.path, stored.identity, stored.tokens)

    def load(self, stored: Stored, reading: Future[Cells]) -> Cells | None:
        """What was read of a prefix, and waits for it; None where that failed, which is logged."""
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
        """Whether another prefix may be saved; no while those before it are still being written."""
        return self._writer.keeps_up

    def save(self, tokens: Sequence[int], scope: str, cells: bytearray) -> None:
        """Have a prefix written, in place of those that it continues. `cells` belongs to the store now."""
        identity = Identity(self._model, prefix_file.digest(scope))
        kept = prefix_file.as_tokens(tokens)
        path = self._folder / prefix_file.name_of(identity, kept)
        known = self._known.setdefault(self._place(identity.scope, kept), [])
        replaced = [old.path for old in known if self._replaces(kept, old.tokens)]
        written = self._writer.write(path, identity, kept, cells, replaced)
        known[:] = [old for old in known if old.path not in (path, *replaced)]
        known.append(Stored(path, identity, kept, written))

    def remove(self, stored: Stored) -> None:
        """The prefix is of no use."""
        self._forget(stored)
        self._writer.remove(stored.path)

    def flush(self) -> None:
        """Return when everything that was saved is on the disk."""
        self._writer.flush()

    def close(self) -> None:
        """`flush`, and end the threads. May be called twice."""
        self._reader.close()
        self._writer.close()

    def _scan(self) -> None:
        """Learn what there is for this model."""
        try:
            for path in prefix_file.files(self._folder, self._model):
                self._learn(path)
        except OSError as error:
            logger.warning("Stored prefixes cannot be read: %s.", error)

    def _learn(self, path: Path) -> None:
        try:
            header = prefix_file.read_header(path)
            if path.name != prefix_file.name_of(header.identity, header.tokens):
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
        """Where a prefix is looked up: what differs in the first `least` tokens need not be compared."""
        return scope, tokens[: self._least].tobytes()

    def _forget(self, stored: Stored) -> None:
        known = self._known.get(self._place(stored.identity.scope, stored.tokens), [])
        if stored in known:
            known.remove(stored)

    def _shared(self, stored: Tokens, wanted: Tokens) -> int:
        """How many leading tokens of a stored prefix `wanted` can use."""
        length = min(len(stored), len(wanted))
        differs = np.flatnonzero(stored[:length] != wanted[:length])
        shared = int(differs[0]) if len(differs) else length
        return 0 if self._whole and shared < len(stored) else shared

    def _replaces(self, longer: Tokens, shorter: Tokens) -> bool:
        """Where cells can be cut, a longer prefix does all that a shorter one did."""
        whole = len(shorter) < len(longer) and self._shared(shorter, longer) == len(shorter)
        return whole and not self._whole
