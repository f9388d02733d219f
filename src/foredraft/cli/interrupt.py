"""Handling of Ctrl-C where an immediate exception would do harm, and SIGTERM treated like Ctrl-C."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

INTERRUPTED = 130
TERMINATED = 143
"""Exit codes as in shells: 128 plus the signal's number."""


class Terminated(KeyboardInterrupt):
    """Raised on SIGTERM: handled as Ctrl-C, with another exit code."""


def stop_code(stop: BaseException) -> int:
    """The exit code of a command that ended with this exception, or with one raised from it."""
    return (
        TERMINATED if isinstance(stop, Terminated) or isinstance(stop.__cause__, Terminated) else INTERRUPTED
    )


@contextmanager
def terminable() -> Iterator[None]:
    """While entered, SIGTERM raises Terminated, so that the same clean-up runs as after Ctrl-C.

    Otherwise SIGTERM ends the process at once, even in native code. Does nothing outside the main thread, or
    if SIGTERM is already handled or ignored.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _terminate(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    raise Terminated


class CtrlC:
    """While entered, Ctrl-C sets `pressed` and raises nothing.

    An exception between a forward and its bookkeeping would leave a wrong record of what the KV cache holds.
    Does nothing outside the main thread, the only one that receives signals.
    """

    def __init__(self) -> None:
        self.pressed = False
        self._previous: Any = None

    def __enter__(self) -> CtrlC:
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, self._press)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _restore(self) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)
            self._previous = None

    def _press(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.pressed = True


class HeldCtrlC(CtrlC):
    """While entered, Ctrl-C is deferred: KeyboardInterrupt is raised at the end of the block, in
    `raise_pressed` or in `release`. The same holds for SIGTERM where it would raise Terminated.

    For native libraries that call Python back. An exception in such a callback is printed and lost
    (llama.cpp's log and progress), or ends the process with a stack dump (PyTorch, while it is imported). A
    second Ctrl-C ends the process at once, even in native code.
    """

    def __init__(self) -> None:
        super().__init__()
        self._terminated = False
        self._holds_term = False

    def __enter__(self) -> HeldCtrlC:
        super().__enter__()
        self._holds_term = (
            self._previous is not None and signal.getsignal(signal.SIGTERM) is _terminate  # `terminable`
        )
        if self._holds_term:
            signal.signal(signal.SIGTERM, self._press)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()
        if error is None:
            self.raise_pressed()

    def release(self) -> None:
        """Stop deferring: from here on Ctrl-C interrupts Python code as usual."""
        self._restore()
        self.raise_pressed()

    def raise_pressed(self) -> None:
        """Raise KeyboardInterrupt if Ctrl-C was pressed."""
        if self.pressed:
            self.pressed = False
            raise Terminated if self._terminated else KeyboardInterrupt

    def _restore(self) -> None:
        super()._restore()
        if self._holds_term:
            signal.signal(signal.SIGTERM, _terminate)
            self._holds_term = False

    def _press(self, number: int, frame: FrameType | None) -> None:
        super()._press(number, frame)
        self._terminated |= number == signal.SIGTERM
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if self._holds_term:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
