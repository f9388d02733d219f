"""How many threads compute where other processes use the cores too.

llama.cpp's threads wait for each other some 300 times in a forward, and spin meanwhile. A thread whose core
another process has keeps all others waiting for the rest of that one's time slice: beside four busy processes
on two cores, two threads wrote a twelfth of the tokens that they write alone, and one thread 3.5 times that
(lab/notes/busy.md). So there are as many threads as cores that nothing else computes on, and at least one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path
from time import monotonic, process_time
from typing import NamedTuple

WINDOW_S = 0.2
"""Seconds between two looks. The system counts in hundredths of a second."""

TOLERATED = 0.45
"""Cores that others may use before a thread makes room: one busy process gets 0.67 beside two threads."""

_STAT = Path("/proc/stat")
_PER_SECOND = 100
"""Linux's unit in /proc/stat."""


class CpuTimes(NamedTuple):
    """Seconds so far: on the clock, of all processors that this process may use, of those without work, and
    of the process's threads.
    """

    at: float
    total: float
    idle: float
    own: float


class FreeCores:
    """Chooses the number of threads, at most `most`, by what others take of `processors`, of which there are
    more than cores if cores have hyper-threads. `read` gives None where that is unknown: then it is `most`.
    """

    def __init__(self, most: int, processors: int, read: Callable[[], CpuTimes | None]) -> None:
        self.most = self.threads = most
        self._processors, self._read = processors, read
        self._last = read() if most > 1 else None
        self._room = most

    def choose(self, now: float) -> int:
        """The number of threads from now on; `now` in seconds by the clock of `CpuTimes.at`.

        Fewer at once, more if two windows in a row have room: a thread too many costs more than one too few.
        """
        if self._last is None or now - self._last.at < WINDOW_S:
            return self.threads
        before, self._last = self._last, self._read()
        if self._last is not None:
            room = self._threads_with_room(before, self._last)
            self.threads = min(room, max(self.threads, self._room))
            self._room = room
        return self.threads

    def _threads_with_room(self, before: CpuTimes, after: CpuTimes) -> int:
        spent = CpuTimes(*(end - begin for begin, end in zip(before, after, strict=True)))
        if not 0.5 < spent.total / (spent.at * self._processors) < 1.5:  # a sandbox that makes the file up
            return self.most
        room = (spent.idle + spent.own) / spent.at
        return max(1, min(self.most, int(room + TOLERATED)))


def free_cores(most: int) -> FreeCores:
    """Of the processors that this process may use. Always `most` on other systems than Linux."""
    try:
        allowed = os.sched_getaffinity(0)
    except AttributeError:
        return FreeCores(most, most, lambda: None)
    return FreeCores(most, len(allowed), lambda: _read(allowed))


def _read(processors: Collection[int]) -> CpuTimes | None:
    try:
        text = _STAT.read_text()
    except OSError:
        return None
    at, own = monotonic(), process_time()
    total, idle = cpu_ticks(text, processors)
    return CpuTimes(at, total / _PER_SECOND, idle / _PER_SECOND, own)


def cpu_ticks(stat: str, processors: Collection[int]) -> tuple[int, int]:
    """All ticks of these processors in the text of /proc/stat, and those without work (proc(5))."""
    total = idle = 0
    for line in stat[: stat.find("\nintr")].splitlines():
        name, *columns = line.split()
        if name[3:].isdecimal() and int(name[3:]) in processors:
            ticks = [int(column) for column in columns[:8]]  # up to `steal`; guests are in `user` already
            total += sum(ticks)
            idle += ticks[3] + ticks[4]  # `idle` and `iowait`
    return total, idle
