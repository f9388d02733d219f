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
    try:
        memberships = [line.split(":", 2) for line in _MEMBERSHIP.read_text().splitlines()]
    except OSError:
        return None
    quotas: list[float] = []
    for _, controllers, group in memberships:
        if not controllers:
            quotas += _quotas(_GROUPS, group, "cpu.max")
        elif "cpu" in controllers.split(","):
            quotas += _quotas(_GROUPS / "cpu", group, "cpu.cfs_quota_us", "cpu.cfs_period_us")
    return min(quotas, default=None)


def _quotas(root: Path, group: str, *files: str) -> Iterator[float]:
    """The limits of a group and of those above it. A container may show its own group as the root, under
    another name: what does not exist has no limit.
    """
    folder = root / group.strip("/")
    for place in (folder, *folder.parents):
        with suppress(OSError, ValueError):  # "max" is no number, and -1 no limit
            quota, period = (float(word) for file in files for word in (place / file).read_text().split())
            if quota > 0:
                yield quota / period
        if place == root:
            return
