"""Use of the machine: processor, memory, and GPUs of NVIDIA and AMD."""

from __future__ import annotations

import importlib
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import psutil

SMI_S = 5.0
"""Seconds between calls of nvidia-smi, which takes a tenth of one."""

SMI_TIMEOUT_S = 3.0
MEBIBYTE = 1 << 20
DRM = Path("/sys/class/drm")


class GpuUse(NamedTuple):
    """Share of the busiest GPU, 0 to 1; bytes used and in all, of all GPUs together."""

    share: float
    used: int
    total: int


class Use(NamedTuple):
    """Share of all cores, 0 to 1; resident bytes of this process; bytes of the machine; GPUs, if known."""

    cpu: float
    memory: int
    total: int
    gpu: GpuUse | None


ReadGpu = Callable[[], GpuUse | None]


class Machine:
    """Reads what is in use now. `read` may block for some milliseconds, and for seconds where a driver hangs:
    it is for another thread. `gpus`: ways of reading GPUs, of which the first that finds one is used.
    """

    def __init__(self, gpus: tuple[Callable[[], ReadGpu | None], ...] | None = None) -> None:
        self._ways = gpus if gpus is not None else (nvml, nvidia_smi, amd)
        self._gpu: ReadGpu | None = None
        self._looked = False
        self._process = psutil.Process()
        psutil.cpu_percent(None)  # the next call is about the time since this one

    def read(self) -> Use:
        """The use since the last call."""
        cpu = min(1.0, psutil.cpu_percent(None) / 100)
        resident, total = self._process.memory_info().rss, psutil.virtual_memory().total
        return Use(cpu, resident, total, self._read_gpu())

    def _read_gpu(self) -> GpuUse | None:
        if not self._looked:
            self._looked = True
            self._gpu = next((read for way in self._ways if (read := way()) and read()), None)
        return None if self._gpu is None else self._gpu()


def nvml() -> ReadGpu | None:
    """NVIDIA's library, where the package nvidia-ml-py and a driver are installed."""
    try:
        library: Any = importlib.import_module("pynvml")
        library.nvmlInit()
        handles = [
            library.nvmlDeviceGetHandleByIndex(number) for number in range(library.nvmlDeviceGetCount())
        ]
    except Exception:  # noqa: BLE001 - of the package, and of a library that it loads
        return None

    def read() -> GpuUse | None:
        try:
            shares = [library.nvmlDeviceGetUtilizationRates(each).gpu / 100 for each in handles]
            memory = [library.nvmlDeviceGetMemoryInfo(each) for each in handles]
        except Exception:  # noqa: BLE001 - as above
            return None
        if not handles:
            return None
        return GpuUse(max(shares), sum(each.used for each in memory), sum(each.total for each in memory))

    return read


def nvidia_smi() -> ReadGpu | None:
    """NVIDIA's program, called every few seconds."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    command = [
        program,
        "--query-gpu=utilization.gpu,memory.used,memory.total",
        "--format=csv,noheader,nounits",
    ]
    known: GpuUse | None = None
    next_at = 0.0

    def read() -> GpuUse | None:
        nonlocal known, next_at
        if monotonic() < next_at:
            return known
        try:
            said = subprocess.run(  # noqa: S603 - a program of the system
                command, capture_output=True, text=True, timeout=SMI_TIMEOUT_S, check=True
            ).stdout
            known = of_smi(said)
        except (OSError, subprocess.SubprocessError, ValueError):
            known = None
        next_at = monotonic() + SMI_S
        return known

    return read


def of_smi(said: str) -> GpuUse | None:
    """The use of all GPUs from nvidia-smi's lines "share in %, used MiB, total MiB". A GPU that does not say
    ("[N/A]") is left out.
    """
    rows = [[part.strip() for part in line.split(",")] for line in said.splitlines()]
    known = [[float(part) for part in row] for row in rows if len(row) == 3 and "[" not in "".join(row)]
    if not known:
        return None
    shares, used, total = zip(*known, strict=True)
    return GpuUse(max(shares) / 100, int(sum(used) * MEBIBYTE), int(sum(total) * MEBIBYTE))


def amd(folder: Path = DRM) -> ReadGpu | None:
    """The files of the Linux kernel's driver for AMD's GPUs."""
    cards = [path.parent for path in sorted(folder.glob("card*/device/gpu_busy_percent"))]
    if not cards:
        return None

    def read() -> GpuUse | None:
        try:
            shares = [int((card / "gpu_busy_percent").read_text()) / 100 for card in cards]
            used = [int((card / "mem_info_vram_used").read_text()) for card in cards]
            total = [int((card / "mem_info_vram_total").read_text()) for card in cards]
        except (OSError, ValueError):
            return None
        return GpuUse(max(shares), sum(used), sum(total))

    return read
