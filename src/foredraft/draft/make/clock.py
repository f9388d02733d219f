"""The time of a job: one clock for everything that it does, in all runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import perf_counter

from foredraft.draft.make.workfolder import WorkFolder

KEPT_EVERY_S = 10.0
"""How much of the time that was spent may be forgotten by a kill."""


class JobClock:
    """`seconds`: for all stages of all runs together. What each took is kept in the work folder. `now` gives
    seconds, and `began` is when this run did.
    """

    def __init__(
        self,
        folder: WorkFolder,
        seconds: float,
        *,
        now: Callable[[], float] = perf_counter,
        began: float | None = None,
    ) -> None:
        self.seconds = seconds
        self._folder = folder
        self._now = now
        self._since = now() if began is None else began
        self._stage = ""

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the time of a block, with that since the last one, as a stage's. Raises OSError."""
        self._stage = name
        try:
            yield
        except BaseException:
            with suppress(OSError):  # what was raised says more
                self.keep()
            raise
        self.keep()

    def keep(self) -> None:
        """Store what the stage that runs has taken until now. Raises OSError."""
        now = self._now()
        self._folder.spend(self._stage, now - self._since)
        self._since = now

    def keep_sometimes(self) -> None:
        """`keep`, if that is some time ago. Raises OSError."""
        if self._now() - self._since >= KEPT_EVERY_S:
            self.keep()

    @property
    def _running(self) -> float:
        return self._now() - self._since

    def spent(self, stage: str) -> float:
        """Seconds that a stage has taken, in all runs."""
        return self._folder.spent(stage) + (self._running if stage == self._stage else 0.0)

    def left(self) -> float:
        """Seconds until the time is over, at least 0."""
        return max(0.0, self.seconds - self._folder.spent() - self._running)

    def over(self, stage: str, part: float) -> bool:
        """Whether a stage has had its part of the time."""
        return self.spent(stage) >= part * self.seconds
