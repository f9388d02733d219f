"""Ctrl-C while llama.cpp computes.

Python hears of a signal when native code returns, which takes as long as a forward does: many seconds where a
large model reads hundreds of tokens. So what computes runs in a thread of its own, and the main thread, which
gets the signals, tells llama.cpp to end the forward in its middle.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, TypeVar

import llama_cpp.llama_cpp as lib

T = TypeVar("T")

_POLL = 0.1
"""Seconds. The system may hand a signal to the thread that computes; the one that waits then has to look."""


def interruptible(context: Any, work: Callable[[], T]) -> T:
    """What `work` returns or raises, which computes on `context`. Ctrl-C ends the forward and then raises
    KeyboardInterrupt, when nothing uses the context any more. What a GPU computes comes to its end first.

    Outside the main thread, which alone hears of Ctrl-C, this is a plain call.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    begin, stop = threading.Event(), threading.Event()

    def run() -> T:
        begin.wait()  # until the thread is known to the pool, which else would not wait for its end
        if stop.is_set():
            raise KeyboardInterrupt
        return work()

    asked = lib.ggml_abort_callback(lambda _data: stop.is_set())
    lib.llama_set_abort_callback(context, asked, None)
    try:
        with ThreadPoolExecutor(1, "foredraft-llama.cpp") as threads:
            try:
                running = threads.submit(run)
                begin.set()
                while not running.done():
                    wait([running], _POLL)
            except KeyboardInterrupt:
                stop.set()
                begin.set()
                join(threads)
                raise
            return running.result()
    finally:
        lib.llama_set_abort_callback(context, lib.ggml_abort_callback(), None)


def join(threads: ThreadPoolExecutor) -> None:
    """Wait for the end of what runs, whatever is pressed: then the context may be freed."""
    while True:
        try:
            return threads.shutdown()
        except KeyboardInterrupt:
            continue
