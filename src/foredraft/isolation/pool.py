"""Runs calls in child processes, so that a crash, hang or memory exhaustion only fails one call.

Children are started on demand, never by forking: a server has threads, and a model in its memory. They share
nothing with the parent but a call's arguments, and have none of its sockets. They are kept for further calls,
with warm imports and caches; one that crashed, hung or ran out of memory is replaced. Memory is limited if
the platform supports it (Linux; partly on other Unixes, not on Windows), time always: on Linux as the child's
processor time, because a busy machine may delay it.

    pool = ChildPool()
    text = pool.call("package.module:function", "an argument", 3, seconds=2.0)

Arguments are anything that can be pickled; a result consists of plain values (numbers, texts, bytes, lists,
tuples, sets, dicts, None). The function is imported in the child, by the same path as here.
"""

from __future__ import annotations

import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import BoundedSemaphore, Lock, Timer
from types import TracebackType
from typing import Any, Self

from foredraft import errors
from foredraft.errors import (
    CapacityError,
    ChildDiedError,
    ChildError,
    ChildMemoryError,
    ChildOutputError,
    ChildTimeoutError,
    ForedraftError,
)
from foredraft.isolation.frames import plain, receive, send

SIZE = 2
MEMORY = 1 << 30
OUTPUT = 8 << 20

START_SECONDS = 60.0
"""Seconds for Python to start and import the function on a busy machine, not counted as the call's time."""

PATIENCE = 10
"""Limit of a call's wall-clock time as a multiple of its processor time, where the latter is known."""

WAIT_SECONDS = 30.0
"""Seconds that a call waits for a free child."""

_ROOM_FOR_A_REPLY = 4096
_LAST_WORDS = 2000
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
_CRASHES = {
    getattr(signal, name)
    for name in ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGTRAP", "SIGSYS")
    if hasattr(signal, name)
}
"""Signals that a process causes itself; others come from outside."""

_OUT_OF_MEMORY = re.compile(r"memory allocation of \d+ bytes failed|bad_alloc|MemoryError", re.I)


class ChildPool:
    """At most `size` children, each with `memory` bytes of memory and at most `output` bytes for a result.

    Any thread may call. Ends with the process, or with `close`.
    """

    def __init__(self, *, size: int = SIZE, memory: int = MEMORY, output: int = OUTPUT) -> None:
        self._limits = (memory, output)
        self._free = BoundedSemaphore(size)
        self._lock = Lock()
        self._idle: list[_Child] = []
        self._children: set[_Child] = set()
        self._end = weakref.finalize(self, _end_all, self._children)

    def call(self, function: str, *args: object, seconds: float) -> Any:
        """Call the function named "module:function" in a child and return its result.

        Raises the function's ForedraftErrors; ChildDiedError, ChildTimeoutError, ChildMemoryError and
        ChildOutputError; ChildError for anything else, such as other exceptions; CapacityError if no child
        became free in time.
        """
        request = pickle.dumps((function, args, PATIENCE * seconds), pickle.HIGHEST_PROTOCOL)
        if not self._free.acquire(timeout=WAIT_SECONDS):
            raise CapacityError(
                "All child processes for checking requests are busy.", hint="Send the request again later."
            )
        try:
            child = self._take()
            try:
                return self._call(child, request, seconds)
            except _NeverBegunError:  # it died while idle; a new one must be able to run the call
                return self._call(self._start(), request, seconds)
        except _NeverBegunError as error:
            raise ChildError(
                f"A child process could not be started: {error}", hint=f"It runs {sys.executable}."
            ) from None
        finally:
            self._free.release()

    def close(self) -> None:
        """End all children; running calls fail."""
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _call(self, child: _Child, request: bytes, seconds: float) -> Any:
        try:
            word, value = child.ask(request, seconds)
        except BaseException:
            self._drop(child)
            raise
        if word == "memory" or child.expired:
            self._drop(child)
        else:
            with self._lock:
                self._idle.append(child)
        return _result(word, value, self._limits)

    def _take(self) -> _Child:
        while True:
            with self._lock:
                child = self._idle.pop() if self._idle else None
            if child is None:
                return self._start()
            if child.alive():
                return child
            self._drop(child)

    def _start(self) -> _Child:
        child = _Child(*self._limits)
        with self._lock:
            self._children.add(child)
        if not self._end.alive:
            self._drop(child)
            raise ChildError("This pool of child processes is closed.")
        return child

    def _drop(self, child: _Child) -> None:
        child.end()
        with self._lock:
            self._children.discard(child)


def _end_all(children: set[_Child]) -> None:
    for child in list(children):
        child.end()


def _result(word: str, value: Any, limits: tuple[int, int]) -> Any:
    """The result of a call from the child's reply; raises its error."""
    memory, output = limits
    if word == "value":
        return value
    if word == "error":
        raise _own_error(*value)
    if word == "memory":
        raise ChildMemoryError(f"It needs more than {memory >> 20} MB of memory.")
    if word == "output":
        raise ChildOutputError(f"Its output takes {value} bytes; its result may have {output}.")
    raise ChildError(str(value))


def _own_error(name: str, message: str, hint: str | None, state: dict[str, Any]) -> ForedraftError:
    """Recreate a ForedraftError as the function raised it."""
    kind = getattr(errors, name)
    error: ForedraftError = kind.__new__(kind, message)
    ForedraftError.__init__(error, message, hint=hint)
    vars(error).update(state)
    return error


class _NeverBegunError(Exception):
    """The child ended before the call started."""


class _Child:
    """One process with its pipes. Used by one thread at a time, except that any thread may call `end`."""

    def __init__(self, memory: int, output: int) -> None:
        self.expired = False
        self._most = output + _ROOM_FOR_A_REPLY
        self._ending = Lock()
        command = [sys.executable, "-P", "-m", "foredraft.isolation.child", str(memory), str(output)]
        try:
            with ExitStack() as opened:
                self._log = opened.enter_context(tempfile.TemporaryFile())
                self._process = subprocess.Popen(  # noqa: S603 - our own module
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._log,
                    env=_environment(),
                )
                opened.pop_all()  # closed by `end`
        except OSError as error:
            raise ChildError(f"A child process could not be started: {error}") from None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._replies = self._process.stdin, self._process.stdout

    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, request: bytes, seconds: float) -> tuple[str, Any]:
        """Run a call and return the child's reply.

        Raises _NeverBegunError, ChildDiedError, ChildTimeoutError and ChildMemoryError; the child is then
        unusable.
        """
        with _Deadline(self._process, START_SECONDS, patience=1) as start:
            try:
                self._log.seek(
                    0
                )  # this also moves the child's position: the file only has one call's messages
                self._log.truncate()
                send(self._requests, request)
                word, value = plain(receive(self._replies, self._most))
            except (EOFError, OSError, ValueError):
                late = f"it was not ready after {START_SECONDS:.0f} s"
                raise _NeverBegunError(late if start.expired else self._last_words()) from None
        if word != "begun":
            return word, value
        with _Deadline(self._process, seconds) as deadline:
            try:
                word, value = plain(receive(self._replies, self._most))
            except EOFError:
                raise self._cause(deadline, seconds) from None
            except Exception as error:  # noqa: BLE001 - a compromised child may send anything
                raise ChildError(f"Its result cannot be read: {error}") from None
            finally:
                deadline.stop()
                self.expired = deadline.expired
        return word, value

    def end(self) -> None:
        """Kill the process and free its resources. May be called twice."""
        self._process.kill()
        with self._ending:
            self._process.wait()
            for stream in (self._requests, self._replies, self._log):
                with suppress(OSError, ValueError):
                    stream.close()

    def _cause(self, deadline: _Deadline, seconds: float) -> ChildError:
        """The error that explains why there is no reply."""
        self._process.kill()
        code = self._process.wait()
        if deadline.expired:
            late = ChildTimeoutError(f"It takes longer than {seconds:g} s.")
            late.transient = deadline.waited
            return late
        words = self._last_words()
        if _OUT_OF_MEMORY.search(words):
            return ChildMemoryError("It needs more memory than it may have.")
        died = ChildDiedError(f"Its process ended: {_how(code)}.", last_words=words)
        died.transient = code < 0 and -code not in _CRASHES
        return died

    def _last_words(self) -> str:
        """The last lines that the process printed."""
        with suppress(OSError, ValueError):
            size = self._log.seek(0, os.SEEK_END)
            self._log.seek(max(0, size - _LAST_WORDS))
            return self._log.read().decode("utf-8", "replace").strip()
        return ""


def _how(code: int) -> str:
    """An exit status in words."""
    if code >= 0:
        return f"exit status {code}"
    with suppress(ValueError):
        return f"signal {-code}, {signal.Signals(-code).name}"
    return f"signal {-code}"


class _Deadline:
    """Kills a process that exceeds its time. Uses a thread, because Windows cannot wait for a pipe with a
    timeout.

    Where it is known, processor time counts, and wall-clock time only beyond `patience` times as much.
    `waited`: the wall-clock limit was exceeded.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], seconds: float, *, patience: float = PATIENCE
    ) -> None:
        self.expired = False
        self.waited = False
        self._over = False
        self._process = process
        self._seconds = seconds
        self._end = time.monotonic() + patience * seconds
        self._worked = _worked(process.pid)
        self._lock = Lock()
        self._timer: Timer

    def __enter__(self) -> Self:
        self._start(self._seconds)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Do not kill the process any more."""
        with self._lock:
            self._over = True
            self._timer.cancel()

    def _start(self, seconds: float) -> None:
        self._timer = Timer(seconds, self._expire)
        self._timer.daemon = True
        self._timer.start()

    def _expire(self) -> None:
        with self._lock:
            if self._over:
                return
            unused = self._unused()
            left = min(unused, self._end - time.monotonic())
            if left > 0:
                self._start(max(left, 0.01))
                return
            self.waited = unused > 0
            self.expired = True
            self._process.kill()

    def _unused(self) -> float:
        """The processor seconds that the process has left; 0 if unknown."""
        now = _worked(self._process.pid)
        return 0.0 if now is None or self._worked is None else self._seconds - (now - self._worked)


def _worked(pid: int) -> float | None:
    """The processor time of a process in seconds; None if unknown (other than on Linux)."""
    if sys.platform != "linux":
        return None
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2]
        user, system = fields.split()[11:13]
    except (OSError, ValueError):
        return None
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _environment() -> dict[str, str]:
    """The parent's environment, with its import path and without anything that looks like a secret."""
    kept = {name: value for name, value in os.environ.items() if not _SECRET.search(name)}
    kept["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)  # noqa: PTH109 - a text
    return kept
