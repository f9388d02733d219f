"""Settings of the C library's memory allocator for a process that runs for weeks.

glibc maps large blocks separately and returns them at once, but after the first such block is freed it serves
that size from its heaps (mallopt(3), M_MMAP_THRESHOLD, "dynamic"), of which there are up to eight per core.
Memory of a long prompt or a saved sequence then stays allocated between smaller blocks that are still in use,
and the process grows with every new mixture of requests.
"""

from __future__ import annotations

import ctypes
import sys

LARGE = 4 << 20
"""Bytes. Larger blocks are mapped separately. The logits of a round are smaller: they are needed in every
one.
"""
HEAPS = 2

_OPTIONS = ((-1, LARGE), (-3, LARGE), (-8, HEAPS))
"""Constants of malloc.h: M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX."""


def give_back_large_blocks() -> bool:
    """Make the C library return large blocks to the system when they are freed. Returns whether it supports
    that; if not, nothing changes.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # musl
        return False
    taken = [mallopt(*option) for option in _OPTIONS]
    return taken == [1, 1, 1]
