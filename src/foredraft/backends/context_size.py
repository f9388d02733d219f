"""The context length of a model for which none was asked for: the longest that fits in memory.

Cells take memory when they are written (docs/decisions/0010), but they all may be. So the cells of all
sequences get a part of the memory that is free when the model is loaded, and the length is the model's own or
a power of two: the same one every time on a machine whose free memory does not change much, for what is kept
of a model depends on it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from foredraft.backends.cpu import control_groups
from foredraft.config import DEFAULT_CONTEXT
from foredraft.errors import CapacityError

SHARE, DEVICE_SHARE = 4, 2
"""A fourth of the free memory, half of a device's. The rest is for draft models, heads, and other programs.
"""

_MEMINFO = Path("/proc/meminfo")


@dataclass(frozen=True, slots=True)
class Chosen:
    """A context length, and why it is that, in words."""

    length: int
    why: str


def choose(reach: int, at_most: int, bytes_per_token: float, memory: int | None, *, share: int) -> Chosen:
    """The length for a model whose positions reach to `reach` tokens (0: not known), up to `at_most`.

    `bytes_per_token`: of the cells of all sequences, and of what else grows with the context. `memory`: bytes
    that are free, None if not known; `share`: the context gets this part of it, 4 for a fourth. It is
    `DEFAULT_CONTEXT` at least, where the model and `at_most` allow that.
    """
    most = min(reach or DEFAULT_CONTEXT, at_most)
    if most <= DEFAULT_CONTEXT:
        return Chosen(most, "what the model takes" if most == reach else "")
    if memory is None:
        return Chosen(DEFAULT_CONTEXT, f"the free memory is not known; the model takes {most:,}")
    fitting = int(memory / share / max(bytes_per_token, 1e-3))
    if fitting >= most:
        return Chosen(most, "what the model takes, which fits in memory")
    length = max(1 << max(fitting, 1).bit_length() - 1, DEFAULT_CONTEXT)
    part = f"{memory / share / 1e9:.1f} GB, 1 / {share} of the free memory"
    return Chosen(min(length, most), f"what fits in {part}; the model takes {most:,}")


def free_memory() -> int | None:
    """Bytes that this process can still take of the processor's memory; None if that is not known."""
    limits = list(_left_by_groups())
    with suppress(OSError, ValueError, StopIteration):
        lines = _MEMINFO.read_text().splitlines()
        limits.append(1024 * int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1]))
    if not limits:
        with suppress(AttributeError, ValueError, OSError):  # not on Windows; elsewhere not what is used
            limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES"))
    return min(limits, default=None)


def all_memory() -> int | None:
    """Bytes that this process could have of the processor's memory if it was alone; None if not known."""
    limits: list[int] = []
    for folder in control_groups("memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with suppress(OSError, ValueError):  # "max" is no number
                limits.append(_number(folder / name))
    with suppress(OSError, ValueError, StopIteration):
        lines = _MEMINFO.read_text().splitlines()
        stated = (line.split() for line in lines if line.startswith(("MemTotal:", "SwapTotal:")))
        limits.append(1024 * sum(int(words[1]) for words in stated))
    if not limits:
        with suppress(AttributeError, ValueError, OSError):
            limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return min(limits, default=None)


def check_fits(length: int, sequences: int, bytes_per_token: float, memory: int | None) -> None:
    """Raises CapacityError for a context that was asked for and could not be filled: `memory` is all that
    there is for it, in bytes, None if not known. `bytes_per_token`: as for `choose`.
    """
    taken = bytes_per_token * length
    if memory is None or taken <= memory:
        return
    longest = int(max(memory, 0) / bytes_per_token)
    raise CapacityError(
        f"A context of {length:,} tokens for each of {sequences} sequences takes {taken / 1e9:,.1f} GB, and "
        f"this machine has {memory / 1e9:,.1f} GB in all beside the weights.",
        hint=f"Use a context of at most {longest:,} tokens (--ctx), or fewer sequences.",
    )


def _left_by_groups() -> Iterator[int]:
    """What the control groups of Linux leave, pages of files that can be dropped included."""
    for folder in control_groups("memory"):
        with suppress(OSError, ValueError):  # "max" is no number
            if (folder / "memory.max").exists():
                limit, used = _number(folder / "memory.max"), _number(folder / "memory.current")
            else:
                limit, used = (_number(folder / f"memory.{name}_in_bytes") for name in ("limit", "usage"))
            stated = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            yield max(limit - used + int(stated.get("inactive_file", 0)), 0)


def _number(file: Path) -> int:
    return int(file.read_text())
