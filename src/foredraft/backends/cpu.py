"""The machine's processor: physical cores and features."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

_TOPOLOGY = Path("/sys/devices/system/cpu")


@cache
def physical_cores() -> int:
    """The number of cores this process may run on, counting hyper-threads of one core once.

    With more threads than cores, llama.cpp's spinning workers wait for each other (lab/notes).
    """
    try:
        allowed = sorted(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS or Windows
        return max(1, os.cpu_count() or 1)
    cores = {_siblings(cpu) for cpu in allowed}
    return max(1, len(cores))


def _siblings(cpu: int) -> str:
    path = _TOPOLOGY / f"cpu{cpu}" / "topology" / "thread_siblings_list"
    try:
        return path.read_text().strip()
    except OSError:
        return str(cpu)
