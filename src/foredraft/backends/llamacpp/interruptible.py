"""Handles Ctrl-C while llama.cpp computes.

Python only handles a signal when native code returns, at the end of a forward: many seconds if a large model
reads hundreds of tokens. So the computation runs in another thread, and the main thread, which receives the
signals, makes llama.cpp abort the forward.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, TypeVar

from foredraft.backends.llamacpp import abi
from foredraft.backends.llamacpp.binding import lib

T = TypeVar("T")

_POLL = 0.1
"""Seconds between checks. The system may deliver a signal to the computing thread, so the waiting one has to
check for it.
"""


def interruptible(context: Any, work: Callable[[], T]) -> T:
    """Run `work`, which computes on `context`, and return its result. Ctrl-C aborts the forward and then
    raises KeyboardInterrupt, once the context is no longer in use. Computations on a GPU are finished first.

    Outside the main thread, the only one that receives Ctrl-C, this is a plain call.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    begin, stop = threading.Event(), threading.Event()

    def run() -> T:
        begin.wait()  # until the pool has registered the thread, which it would otherwise not wait for
        if stop.is_set():
            raise KeyboardInterrupt
        return work()

    asked = abi.ggml_abort_callback(lambda _data: stop.is_set())
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
        lib.llama_set_abort_callback(context, abi.ggml_abort_callback(), None)


def join(threads: ThreadPoolExecutor) -> None:
    """Wait for running work, ignoring Ctrl-C, so that the context may be freed."""
    while True:
        try:
            return threads.shutdown()
        except KeyboardInterrupt:
            continue
