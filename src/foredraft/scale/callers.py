"""Ends the answers of a front that has ended: Ray does not tell a replica."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LOOK_S = 3.0
"""Seconds between looks whether the fronts are there that answers are for."""

logger = logging.getLogger("foredraft.server.scale")


class Callers:
    """The fronts that a replica answers. `is_there` says whether one with this name runs; it may block."""

    def __init__(self, is_there: Callable[[str], bool]) -> None:
        self._is_there = is_there
        self._answers: dict[str, set[asyncio.Event]] = {}
        self._looking: asyncio.Task[None] | None = None

    @contextmanager
    def answering(self, front: str) -> Iterator[asyncio.Event]:
        """An answer for this front runs. The event is set if the front ends."""
        gone = asyncio.Event()
        self._answers.setdefault(front, set()).add(gone)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        try:
            yield gone
        finally:
            self._answers[front].discard(gone)
            if not self._answers[front]:
                del self._answers[front]

    async def _look(self) -> None:
        """While answers run."""
        while self._answers:
            await asyncio.sleep(LOOK_S)
            for front in list(self._answers):
                if not await asyncio.to_thread(self._is_there, front):
                    ended = self._answers.get(front, set())
                    logger.warning("A front has ended: its %d answers are given up.", len(ended))
                    for gone in ended:
                        gone.set()
