"""Runs one embedding model or reranker on its own thread for async callers.

Requests share it: each computation takes a text of every waiting request in turn, up to a bound, so that one
of a thousand texts does not hold up one of a single text.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from foredraft.embedding import Embedder, Encoded, Vectors
from foredraft.errors import (
    BackendError,
    CapacityError,
    DeadlineExceededError,
    ForedraftError,
    QueueFullError,
)

logger = logging.getLogger(__name__)

MOST_TEXTS = 32
MOST_TOKENS = 8192
"""Of one computation, but for a single text that is longer."""


@dataclass(slots=True, eq=False)
class _Job:
    """The texts of a request; those before `begun` are being computed or done, and `left` are not done."""

    texts: Sequence[Encoded]
    found: Vectors
    left: int
    begun: int = 0
    answer: Future[Vectors] = field(default_factory=Future)


class EmbedderWorker:
    """Runs an embedder created by `load`, without blocking the event loop. Call `start` first and `close`
    last.
    """

    def __init__(self, load: Callable[[], Embedder]) -> None:
        self._load = load
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()
        self._jobs: deque[_Job] = deque()
        self._closing = self._ended = False
        self._dimensions = 0

    @property
    def alive(self) -> bool:
        """Whether it accepts requests; False after `close`."""
        return self._thread is not None and not self._ended

    @property
    def requests(self) -> int:
        """How many requests it works on: they take turns, and none waits for the end of another."""
        return len(self._jobs)

    async def start(self) -> Embedder:
        """Load the model. Raises what loading raises."""
        ready: Future[Embedder] = Future()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="foredraft-embed", daemon=True)
        self._thread.start()
        try:
            embedder = await asyncio.wrap_future(ready)
        except asyncio.CancelledError:
            self._close()  # the model that is still loading is not needed
            raise
        self._dimensions = embedder.traits.dimensions
        return embedder

    async def compute(
        self, texts: Sequence[Encoded], *, most_waiting: int, deadline_s: float | None = None
    ) -> Vectors:
        """The vectors of the texts, or scores of pairs, in order. If the caller leaves, what is left of them
        is not computed.

        Raises QueueFullError, DeadlineExceededError, CapacityError if the model is unloaded meanwhile,
        BackendError.
        """
        job = _Job(texts, np.empty((len(texts), self._dimensions), np.float32), len(texts))
        with self._changed:
            if not self.alive or self._closing:
                raise _not_loaded()
            if len(self._jobs) > most_waiting:
                raise QueueFullError(f"{most_waiting} requests are waiting already.", hint="Try again later.")
            self._jobs.append(job)
            self._changed.notify()
        try:
            async with asyncio.timeout(deadline_s):
                return await asyncio.wrap_future(job.answer)
        except TimeoutError:
            raise DeadlineExceededError(
                f"The request took longer than {deadline_s:g} seconds, the limit of this server."
            ) from None

    async def close(self) -> None:
        """End all requests with an error and free the model. May be called twice."""
        self._close()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    def _close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify()

    # --- on the model's thread -------------------------------------------------------------------------

    def _run(self, ready: Future[Embedder]) -> None:
        ready.set_running_or_notify_cancel()
        try:
            embedder = self._load()
        except BaseException as error:  # noqa: BLE001 - raised in `start`
            self._ended = True
            ready.set_exception(error)
            return
        ready.set_result(embedder)
        try:
            while batch := self._next():
                self._compute(embedder, batch)
        finally:
            with self._changed:
                self._ended = True
                left, self._jobs = list(self._jobs), deque()
            for job in left:
                _end(job, _not_loaded())
            try:
                embedder.close()
            except Exception:
                logger.exception("The model could not be freed.")

    def _next(self) -> list[tuple[_Job, int]]:
        """(request, number of its text) of those to compute now; none at the end. Waits for requests."""
        with self._changed:
            while True:
                for job in [job for job in self._jobs if job.answer.cancelled()]:
                    self._jobs.remove(job)
                if self._closing:
                    return []
                if batch := self._taken():
                    return batch
                self._changed.wait()

    def _taken(self) -> list[tuple[_Job, int]]:
        """A text of each request in turn, up to the bounds."""
        taken: list[tuple[_Job, int]] = []
        tokens = 0
        while len(taken) < MOST_TEXTS:
            job = next((job for job in self._jobs if job.begun < len(job.texts)), None)
            if job is None:
                break
            tokens += len(job.texts[job.begun].tokens)
            if taken and tokens > MOST_TOKENS:
                break
            taken.append((job, job.begun))
            job.begun += 1
            self._jobs.remove(job)
            self._jobs.append(job)
        return taken

    def _compute(self, embedder: Embedder, batch: Sequence[tuple[_Job, int]]) -> None:
        jobs = dict.fromkeys(job for job, _ in batch)
        try:
            vectors = embedder.compute([job.texts[place] for job, place in batch])
        except Exception as error:
            logger.exception("Texts could not be computed; their requests end with an error.")
            reason = error if isinstance(error, ForedraftError) else BackendError("The model failed.")
            self._over(list(jobs))
            for job in jobs:
                _end(job, reason)
            return
        for (job, place), vector in zip(batch, vectors, strict=True):
            job.found[place] = vector
            job.left -= 1
        done = [job for job in jobs if not job.left]
        self._over(done)
        for job in done:
            _end(job)

    def _over(self, jobs: Sequence[_Job]) -> None:
        with self._changed:
            for job in jobs:
                if job in self._jobs:
                    self._jobs.remove(job)


def _end(job: _Job, error: ForedraftError | None = None) -> None:
    if not job.answer.set_running_or_notify_cancel():
        return
    if error is None:
        job.answer.set_result(job.found)
    else:
        job.answer.set_exception(error)


def _not_loaded() -> CapacityError:
    return CapacityError("The model is not loaded.", hint="Try again when it is.")
