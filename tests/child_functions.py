"""What the tests have children do."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from foredraft.errors import RateLimitError, RequestError


def add(one: int, two: int) -> int:
    return one + two


def values() -> object:
    return {
        "texts": ["é", "\ud800"],
        "bytes": b"\0\xff",
        "pair": (1, 2.5),
        "set": {3},
        "none": None,
        "big": 2**80,
    }


def process() -> int:
    return os.getpid()


def crash() -> None:
    print("assertion failed: native code", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)


def crash_over(*_what: object) -> None:
    """Crash, whatever the work is."""
    crash()


def end_by(name: str) -> None:
    os.kill(os.getpid(), getattr(signal, name))
    time.sleep(60)


def leave(code: int) -> None:
    os._exit(code)


def hang() -> None:
    while True:
        time.sleep(1)


def hang_with_the_lock() -> None:
    """As native code does that never lets another thread run."""
    sys.setswitchinterval(1e6)
    9 ** (9 ** (9**9))


def eat_slowly() -> int:
    eaten = []
    while True:
        eaten.append(bytearray(10 << 20))


def eat_at_once() -> int:
    return len(bytearray(1 << 40))


def eat_and_abort() -> None:
    """As Rust does."""
    print("memory allocation of 17179869184 bytes failed", file=sys.stderr, flush=True)
    os.abort()


def much(size: int) -> str:
    return "x" * size


def noise() -> str:
    for line in range(200_000):
        print("x" * 200, line)
        print("y" * 200, line, file=sys.stderr)
    return "done"


def read_input() -> str:
    return sys.stdin.read() + input_of_a_descriptor()


def input_of_a_descriptor() -> str:
    return os.read(0, 100).decode()


def refuse() -> None:
    raise RequestError("That cannot be done.", hint="Do something else.")


def refuse_for_now() -> None:
    raise RateLimitError("Not now.", retry_after=2.5)


def fail() -> None:
    raise KeyError("no such thing")


class Strange:
    pass


def strange() -> object:
    return Strange()


def unpicklable() -> object:
    return lambda: 1


def environment() -> dict[str, str]:
    return dict(os.environ)


def descriptors() -> list[str]:
    open_ones = [path for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return sorted(str(path.readlink()) for path in open_ones if path.is_symlink())


def sleep(seconds: float) -> float:
    time.sleep(seconds)
    return seconds
