"""The machine's processor: physical cores and features."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

_TOPOLOGY = Path("/sys/devices/system/cpu")
_GROUPS = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")


@cache
def physical_cores() -> int:
    """The number of cores this process may use: those it may run on, counting hyper-threads of one core
    once, or as many as its quota of processor time keeps busy (`docker run --cpus`, systemd's CPUQuota=).

    With more threads than cores, llama.cpp's spinning workers wait for each other (lab/notes).
    """
    quota = cpu_quota()
    return _cores() if quota is None else max(1, min(_cores(), int(quota)))


def _cores() -> int:
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


def cpu_quota() -> float | None:
    """How many processors' time Linux's control groups leave to this process; None without a limit."""
    return min(_quotas(), default=None)


def _quotas() -> Iterator[float]:
    for place in control_groups("cpu"):
        for files in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
            with suppress(OSError, ValueError):  # "max" is no number, and -1 no limit
                quota, period = (float(word) for file in files for word in (place / file).read_text().split())
                if quota > 0:
                    yield quota / period


def control_groups(controller: str) -> Iterator[Path]:
    """The folders of this process's control groups with a controller, and of those above them. A container
    may show its own group as the root, under another name: not all exist.
    """
    try:
        memberships = [line.split(":", 2) for line in _MEMBERSHIP.read_text().splitlines()]
    except OSError:
        return
    for _, controllers, group in memberships:
        if controllers and controller not in controllers.split(","):
            continue
        root = _GROUPS / controller if controllers else _GROUPS
        folder = root / group.strip("/")
        yield from (place for place in (folder, *folder.parents) if place.is_relative_to(root))
