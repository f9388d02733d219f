"""How the C library keeps memory in a process that runs for weeks.

glibc maps a large block anew and gives it back at once, but after the first such block is freed it takes ones
of that size from its heaps (mallopt(3), M_MMAP_THRESHOLD, "dynamic"), and has up to eight of these a core.
What a long prompt or a saved sequence took then stays between smaller blocks that live on, and the process
grows with every mixture of requests that it has not had yet.
"""

from __future__ import annotations

import ctypes
import sys

LARGE = 4 << 20
"""Bytes. What is larger is mapped: logits of a round are smaller, and would be asked for in every one."""
HEAPS = 2

_OPTIONS = ((-1, LARGE), (-3, LARGE), (-8, HEAPS))
"""Of malloc.h: M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX."""


def give_back_large_blocks() -> bool:
    """Have large blocks given back when they are freed, whatever was freed before. Returns whether the C
    library knows how; without, nothing changes.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # musl
        return False
    taken = [mallopt(*option) for option in _OPTIONS]
    return taken == [1, 1, 1]
