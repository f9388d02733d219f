"""What the server did: the last two minutes second by second, and longer windows that survive a restart."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from foredraft.server.console.figure_store import LEVELS, MOST_KEYS, Changes, FigureStore, Row, Usage, merged
from foredraft.server.console.figures import Figures
from foredraft.server.console.machine import Machine, Use
from foredraft.server.metrics import Watch

LIVE_S = 120
"""Seconds that are kept one by one."""

WRITE_S, IDLE_WRITE_S = 10.0, 60.0
"""Seconds between two writes to the file, and where nothing was asked meanwhile."""

AGAIN_S = 60.0
"""Seconds until a file that could not be written is tried again."""

SHORTEST_TICK_S = 0.5
"""A shorter step would have no rate to speak of: tokens come in bursts."""

MEMORY_ONLY = "No file for the figures was named."

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Step:
    """What happened in the step of `step` seconds that ended at the Unix time `at`."""

    at: float
    step: float
    figures: Figures


@dataclass(slots=True)
class History:
    """Collects figures from `Metrics`, of which it is an observer, and from the machine. `store` None: in
    memory only. `clock`: Unix time. Used by one event loop; `run` has to run.

    Memory: about 2 kB for each of 120 seconds and of the rows of `LEVELS`.
    """

    store: FigureStore | None = None
    machine: Machine = field(default_factory=Machine)
    clock: Callable[[], float] = time.time
    steady: Callable[[], float] = time.monotonic
    not_kept: str | None = None
    """Why figures do not survive a restart; None: they do."""
    memory_total: int | None = None
    gpu_total: int | None = None
    since: float = 0.0
    _current: Figures = field(default_factory=Figures)
    _live: deque[Step] = field(default_factory=lambda: deque(maxlen=LIVE_S))
    _rows: dict[Row, Figures] = field(default_factory=dict)
    _usage: dict[str, Usage] = field(default_factory=dict)
    _pending: Changes = field(default_factory=Changes)
    _watched: dict[int, Watch] = field(default_factory=dict)
    _ticked: float = 0.0
    _write_at: float = 0.0
    _asked: bool = False
    _writing: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self.since, self._ticked = self.clock(), self.steady()
        if self.store is None:
            self.not_kept = MEMORY_ONLY

    # --- what comes, from `Metrics` ----------------------------------------------------------------------

    def began(self, watch: Watch) -> None:
        """An answer has been asked for. It does not count as waiting before the next look."""
        self._watched[id(watch)] = watch

    def came(self, watch: Watch, gaps: Sequence[float], count: int) -> None:
        """Tokens have come."""
        current = self._current
        current.generated += count
        if gaps:
            current.gaps.add(gaps[0], len(gaps))
        if watch.count == count:  # the first ones
            current.first.add((watch.first or watch.began) - watch.began)
            current.read += max(0, len(watch.prompt) - watch.ticket.cached)
            self._look()

    def ended(self, watch: Watch, caller: str, *, failed: bool) -> None:
        """An answer is over."""
        self._look()
        self._watched.pop(id(watch), None)
        current, end = self._current, watch.end
        current.requests += 1
        current.failed += failed
        used = Usage(1, watch.count if end is None else end.usage.completion_tokens, self.clock())
        for uses in (self._usage, self._pending.usage):
            uses[caller] = uses.get(caller, Usage()).plus(used)
        if end is None:
            return
        stats = end.speculation
        current.prompt += end.usage.prompt_tokens
        current.cached += end.usage.cached_tokens
        current.rounds += stats.rounds
        for name, each in stats.drafters.items():
            current.drafted(name, [each.drafts, each.drafted, each.accepted, each.ms])
        current.accepted(stats.accepted_by_depth)
        if stats.estimated_speedup is not None:
            ms = sum(stats.ms.values())
            current.spent_ms += ms
            current.plain_ms += stats.estimated_speedup * ms

    def _look(self) -> None:
        """Note how many run and wait."""
        placed = sum(watch.ticket.placed for watch in self._watched.values())
        self._current.running = max(self._current.running, placed)
        self._current.waiting = max(self._current.waiting, len(self._watched) - placed)

    # --- time ----------------------------------------------------------------------------------------------

    def tick(self, use: Use | None) -> None:
        """A second is over."""
        now, ticked, done = self.clock(), self.steady(), self._current
        self._look()
        done.seconds = ticked - self._ticked
        if use is not None:
            done.cpu, done.cpu_s, done.memory = use.cpu * done.seconds, done.seconds, use.memory
            self.memory_total = use.total
            if use.gpu is not None:
                done.gpu, done.gpu_s = use.gpu.share * done.seconds, done.seconds
                done.gpu_memory, self.gpu_total = use.gpu.used, use.gpu.total
        self._current, self._ticked = Figures(), ticked
        self._look()
        while self._live and self._live[-1].at >= now:  # the clock was set back
            self._live.pop()
        self._live.append(Step(now, done.seconds, done))
        self._asked = self._asked or bool(done.requests or done.generated)
        fresh = False
        for level in LEVELS:
            row = level.step, int(now - done.seconds / 2) // level.step * level.step
            fresh = fresh or row not in self._rows
            for rows in (self._rows, self._pending.rows):
                rows.setdefault(row, Figures()).merge(done)
        if fresh:
            self._forget(now)

    def _forget(self, now: float) -> None:
        """Drop what the file drops. Both are small: a file that cannot be written must not change that."""
        for rows in (self._rows, self._pending.rows):
            for step, keep in LEVELS:
                nearest = sorted((row for row in rows if row[0] == step), key=lambda row: abs(row[1] - now))
                for row in nearest[keep:]:
                    del rows[row]
        for uses in (self._usage, self._pending.usage):
            while len(uses) > MOST_KEYS:
                last = min(uses, key=lambda key: uses[key].last_used or 0.0)
                del uses[last]

    async def run(self) -> None:
        """Tick every second, and write now and then, until this is cancelled."""
        await self.write()
        while True:
            # Until the next whole second that is not too near.
            await asyncio.sleep(1.0 + SHORTEST_TICK_S - (self.clock() + SHORTEST_TICK_S) % 1.0)
            try:
                self.tick(await asyncio.to_thread(self.machine.read))
            except Exception:
                logger.exception("The use of the machine could not be read.")
                self.tick(None)
            if self._due() and (self._writing is None or self._writing.done()):
                self._writing = asyncio.create_task(self.write())

    def _due(self) -> bool:
        return self.steady() >= self._write_at - (IDLE_WRITE_S - WRITE_S if self._asked else 0.0)

    async def close(self) -> None:
        """Write what is left. `run` has been cancelled before."""
        if self._writing is not None:
            await asyncio.gather(self._writing, return_exceptions=True)
        self.tick(None)
        await self.write()
        if self.store is not None:
            await asyncio.to_thread(self.store.close)

    async def write(self) -> None:
        """Add to the file what came since the last time, and learn what others have added."""
        if self.store is None:
            return
        changes, self._pending = self._pending, Changes()
        changes.since = self.since
        self._asked = False
        now = self.steady()
        try:
            found = await asyncio.to_thread(self.store.exchange, changes, self.clock())
        except (OSError, sqlite3.Error, ValueError, TypeError) as error:
            self._put_back(changes)
            self._write_at = now + AGAIN_S + (IDLE_WRITE_S - WRITE_S)
            if self.not_kept is None:
                logger.warning("Figures are kept in memory only: %s: %s.", self.store.path, error)
            said = (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
            self.not_kept = f"{self.store.path.name}: {error if isinstance(error, sqlite3.Error) else said}"
            return
        self._write_at, self.not_kept = now + IDLE_WRITE_S, None
        self._take(found)

    def _put_back(self, changes: Changes) -> None:
        for row, figures in changes.rows.items():
            self._pending.rows.setdefault(row, Figures()).merge(figures)
        for key, usage in changes.usage.items():
            self._pending.usage[key] = self._pending.usage.get(key, Usage()).plus(usage)

    def _take(self, found: Changes) -> None:
        """Rows as they are in the file now, and what came while they were read."""
        for row, figures in found.rows.items():
            if row in self._pending.rows:
                figures.merge(self._pending.rows[row])
            self._rows[row] = figures
        self._usage = {
            key: found.usage.get(key, Usage()).plus(self._pending.usage.get(key, Usage()))
            for key in found.usage | self._pending.usage
        }
        self.since = self.since if found.since is None else min(self.since, found.since)

    # --- what is shown -------------------------------------------------------------------------------------

    def usage(self) -> dict[str, Usage]:
        """What each caller used since `since`, by `Caller.identity`."""
        return dict(self._usage)

    @property
    def last_at(self) -> float | None:
        """When the last second ended."""
        return self._live[-1].at if self._live else None

    def live(self) -> list[Step]:
        """The last two minutes, second by second, the oldest first."""
        now = self.clock()
        return [step for step in self._live if now - LIVE_S - 1 < step.at <= now]

    def steps(self, step: int, span_s: float | None, together: int = 1) -> list[Step]:
        """The rows of `step` seconds of the last `span_s`, the oldest first, of which there are some;
        `together` neighbours as one. A clock that was wrong may have left rows of the future, which wait.
        """
        now, wide = self.clock(), step * together
        oldest = 0.0 if span_s is None else now - span_s
        found: dict[int, list[Figures]] = {}
        for (of, at), figures in self._rows.items():
            if of == step and oldest - step < at <= now:
                found.setdefault(at // wide * wide, []).append(figures)
        return [
            Step(min(at + wide, now), min(wide, max(now - at, 0.001)), merged(found[at]))
            for at in sorted(found)
        ]
