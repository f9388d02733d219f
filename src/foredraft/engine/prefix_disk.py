"""Between the KV cache and the prefixes on disk: what is worth saving, and worth bringing back."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import cast

from foredraft.engine.prefix_file import prefixes_dir
from foredraft.engine.prefix_reader import Cells
from foredraft.engine.prefix_store import PrefixStore, Stored
from foredraft.errors import BackendError, ForedraftError
from foredraft.protocols import Model
from foredraft.types import Rollback, Timings

WORTH_KEEPING = 64
"""Fewer tokens than this are computed again. Beside running streams a prompt is read 64 tokens a round, so a
shorter prefix saves less than a round. Without them the default model computes 64 tokens in 0.4 s on one core
and has their 1.5 MB back in 1 ms: that hardly shows, and many small files would crowd out what does.
"""

MARGIN = 0.8
"""Cells are brought back if that is expected to take at most this share of computing them."""

logger = logging.getLogger(__name__)


class PrefixCosts:
    """Whether bringing cells back beats computing them: measured here, on this disk and this device.

    A fast GPU computes a prompt sooner than some disks give its cells back. Computing is taken at the best
    rate that was seen, since what else ran at the time slows it down; bringing back at the median of the last
    few. What was not measured yet is tried.
    """

    def __init__(self) -> None:
        self._computing: float | None = None
        self._restoring: deque[float] = deque(maxlen=5)

    def computed(self, tokens: int, seconds: float) -> None:
        """A prompt was computed."""
        if tokens >= WORTH_KEEPING and seconds > 0:
            rate = seconds / tokens
            self._computing = rate if self._computing is None else min(rate, self._computing)

    def restored(self, tokens: int, seconds: float) -> None:
        """So many cells were brought back."""
        self._restoring.append(seconds / tokens)

    def pays(self, gained: int, tokens: int) -> bool:
        """Whether to bring `tokens` cells back in order not to compute `gained`."""
        if gained < WORTH_KEEPING:
            return False
        if self._computing is None or not self._restoring:
            return True
        return tokens * median(self._restoring) <= MARGIN * gained * self._computing


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
        """Nobody wants it any more."""
        self.reading.cancel()


class PrefixDisk:
    """Saves sequences of `model` that must make room, and brings them back. `clock` gives seconds."""

    def __init__(
        self, model: Model, store: PrefixStore, *, clock: Callable[[], float] = perf_counter
    ) -> None:
        self.costs = PrefixCosts()
        self._model = model
        self._whole = model.capabilities.rollback is not Rollback.TRUNCATE
        self._store = store
        self._clock = clock

    def fetch(self, tokens: Sequence[int], scope: str, held: int) -> Fetch | None:
        """Begin to read what the disk has of `tokens`, where bringing it back beats going on from `held`
        cells.
        """
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

    def keep(
        self, seq: int, tokens: Sequence[int], scope: str, *, kept: int = 0, asked: bool = False
    ) -> None:
        """The sequence, which holds `tokens`, has to make room for all but the first `kept`: save it, unless
        (nearly) all of it is saved. `asked`: they are a prompt, of whose answer the sequence has nothing. It
        may be shorter afterwards.
        """
        found = self._store.find(tokens, scope)
        if len(tokens) - max(kept, found[1] if found else 0) < WORTH_KEEPING:
            return
        if not self._store.keeps_up or not self.costs.pays(len(tokens), len(tokens)):
            return
        try:
            if asked and self._whole:
                tokens = tokens[: self._before_its_end(seq, len(tokens))]
            cells = cast("bytearray", self._model.snapshot(seq))
        except (ForedraftError, MemoryError) as error:
            logger.warning("A sequence could not be saved: %s", error)
            return
        self._store.save(tokens, scope, cells)

    def _before_its_end(self, seq: int, length: int) -> int:
        """Cut a sequence of so many tokens that, restored, could not be cut: the last token of a prompt is
        computed whenever it is asked, and all of the prompt would be where the state has taken it in. Returns
        how many tokens are left; all are where the model cannot go back so little.
        """
        for shorter in (length - 1, self._model.reachable(seq, length - 1)):
            if shorter < WORTH_KEEPING or length - shorter >= WORTH_KEEPING:
                continue
            try:
                self._model.truncate(seq, shorter)
            except BackendError:
                continue
            return shorter
        return length

    def observe(self, timings: Timings) -> None:
        """What an answer tells about the cost of its prompt."""
        self.costs.computed(timings.prompt_n, timings.prompt_ms / 1e3)

    def flush(self) -> None:
        """Return when everything that was saved is on the disk."""
        self._store.flush()

    def close(self) -> None:
        """`flush`, and end the threads that read and write."""
        self._store.close()


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
        prefixes_dir(cache_dir),
        capabilities.snapshot_key,
        max_bytes=max_bytes,
        least=WORTH_KEEPING,
        whole=capabilities.rollback is not Rollback.TRUNCATE,
        clock=clock,
    )
    return PrefixDisk(model, store, clock=clock)
