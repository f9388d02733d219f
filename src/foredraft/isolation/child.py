"""The child's side of `pool`: `python -m foredraft.isolation.child MEMORY OUTPUT`.

It reads calls from its standard input, runs them one after another, and ends with its parent (at the end of
the input). A call is acknowledged once its function is imported, and only then its time starts. Output of a
function goes to the standard error, so that it cannot mix with the replies.
"""

from __future__ import annotations

import errno
import faulthandler
import os
import pickle
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

from foredraft.errors import ForedraftError
from foredraft.isolation.frames import receive, send

IDLE_SECONDS = 600.0
"""Seconds without a call after which a child ends to free its memory. The pool starts another if needed."""

GRACE_SECONDS = 5.0
"""The parent kills a child that exceeds its time. If the parent is gone, the child ends itself this much
later.
"""

_FILE_BYTES = 16 << 20
"""Maximum output of a function."""


def main(memory: int, output: int) -> None:
    """Run calls until the parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    requests, replies = _take_pipes()
    _set_limits(memory)
    with suppress(OSError):  # if memory runs out, Linux kills this process instead of the server
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    with suppress(EOFError, OSError), requests, replies:
        while True:
            # A C thread without the interpreter lock: it ends the child whatever the child is doing.
            faulthandler.dump_traceback_later(IDLE_SECONDS, exit=True)
            request = receive(requests)
            faulthandler.cancel_dump_traceback_later()
            send(replies, _bounded(_answer(request, replies), output))


def _take_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Move standard input and output to other descriptors, so that functions cannot read or write them."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return requests, replies


def _set_limits(memory: int) -> None:
    if sys.platform == "win32":
        return
    import resource

    # On Linux the limit covers writable memory; elsewhere that would leave out mapped memory.
    space = resource.RLIMIT_DATA if sys.platform == "linux" else resource.RLIMIT_AS
    limits = ((space, memory), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, _FILE_BYTES))
    for limit, value in limits:
        _, highest = resource.getrlimit(limit)
        bound = value if highest == resource.RLIM_INFINITY else min(value, highest)
        with suppress(ValueError, OSError):  # macOS does not support all of them
            resource.setrlimit(limit, (bound, bound))


def _answer(request: bytes, replies: BinaryIO) -> tuple[str, Any]:
    """The reply to a call: a word for the result, and its value."""
    try:
        name, args, seconds = pickle.loads(request)  # noqa: S301 - from our own parent
        function = _function(name)
        send(replies, pickle.dumps(("begun", None)))
        faulthandler.dump_traceback_later(seconds + GRACE_SECONDS, exit=True)
        return "value", function(*args)
    except MemoryError:
        return "memory", None
    except ForedraftError as error:
        return "error", (_known(type(error)), error.message, error.hint, vars(error))
    except Exception as error:  # noqa: BLE001 - raised in the parent
        if isinstance(error, OSError) and error.errno == errno.EFBIG:
            return "output", _FILE_BYTES  # its printed output
        return "failed", f"{type(error).__name__}: {error}"


def _function(name: str) -> Callable[..., Any]:
    module, _, attribute = name.partition(":")
    found: Callable[..., Any] = getattr(import_module(module), attribute)
    return found


def _known(kind: type) -> str:
    """The name of the closest base class in `foredraft.errors`."""
    return next(base.__name__ for base in kind.__mro__ if base.__module__ == ForedraftError.__module__)


def _bounded(answer: tuple[str, Any], output: int) -> bytes:
    """The pickle of a reply, or of the error that prevents it."""
    try:
        data = pickle.dumps(answer, pickle.HIGHEST_PROTOCOL)
    except MemoryError:
        return pickle.dumps(("memory", None))
    except Exception as error:  # noqa: BLE001 - raised in the parent
        return pickle.dumps(("failed", f"{type(error).__name__}: {error}"))
    return data if len(data) <= output else pickle.dumps(("output", len(data)))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
