"""Ctrl-C where raising an exception at once would do harm."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class CtrlC:
    """While entered, Ctrl-C sets `pressed` and raises nothing.

    An exception could strike between a forward and its bookkeeping, and leave the KV cache saying that it
    holds other tokens than it does. Outside the main thread, which alone gets signals, nothing is changed.
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
    """While entered, Ctrl-C waits: it raises KeyboardInterrupt at the end of the block, at `raise_pressed` or
    at `release`.

    For native libraries that call Python back. What is raised in such a call is printed and lost (llama.cpp's
    log and progress), or ends the process with a stack dump (PyTorch, while it is imported). A second Ctrl-C
    ends the process at once, in native code too.
    """

    def __enter__(self) -> HeldCtrlC:
        super().__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()
        if error is None:
            self.raise_pressed()

    def release(self) -> None:
        """From here on it is Python that takes long: Ctrl-C is as usual again."""
        self._restore()
        self.raise_pressed()

    def raise_pressed(self) -> None:
        """Here it may be raised, if it was pressed."""
        if self.pressed:
            self.pressed = False
            raise KeyboardInterrupt

    def _press(self, number: int, frame: FrameType | None) -> None:
        super()._press(number, frame)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
