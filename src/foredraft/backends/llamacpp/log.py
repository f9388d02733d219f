"""llama.cpp's log: silent by default, captured to explain failures.

llama.cpp has one global logger, so there is one callback for the process, kept alive here.
"""

from __future__ import annotations

import ctypes
import logging
import re
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from foredraft.backends.llamacpp import abi
from foredraft.backends.llamacpp.binding import lib
from foredraft.errors import printable

logger = logging.getLogger("foredraft.llamacpp")
_CONTINUATION = 5
_LEVELS = {1: logging.DEBUG, 2: logging.DEBUG, 3: logging.DEBUG, 4: logging.DEBUG}
LONGEST = 300

_SIZE = re.compile(r"(\S+) +(model|KV|RS|compute|output) buffer size = +([\d.]+) MiB")
_KINDS = {"model": "weights", "KV": "kv_cache", "RS": "kv_cache", "compute": "compute", "output": "compute"}

_captured: tuple[list[str], ...] = ()
"""Replaced as a whole, under `_changing`: llama.cpp logs from threads that hold no lock."""
_changing = threading.Lock()
_installed: list[object] = []


def _receive(level: int, text: bytes | None, _user_data: ctypes.c_void_p) -> None:
    if text is None:
        return
    line = text.decode("utf-8", "replace")
    for sink in _captured:
        if level == _CONTINUATION and sink:
            sink[-1] += line
        else:
            sink.append(line)
    if line.strip() and line.strip() != ".":
        logger.log(_LEVELS.get(level, logging.DEBUG), "%s", line.rstrip())


def install() -> None:
    """Route llama.cpp's log through `logging` (debug level). Idempotent."""
    with _changing:
        if not _installed:
            callback = abi.ggml_log_callback(_receive)
            _installed.append(callback)
            lib.llama_log_set(callback, ctypes.c_void_p(None))
            lib.llama_backend_init()


def install_for(log_set: Any) -> None:
    """The same for a library with a logger of its own, by its function that sets it."""
    install()
    log_set(_installed[0], None)


@contextmanager
def capture() -> Iterator[list[str]]:
    """Collect llama.cpp's log lines for the duration of the block."""
    global _captured  # noqa: PLW0603 - as there is one logger for the process
    install()
    sink: list[str] = []
    with _changing:
        _captured = (*_captured, sink)
    try:
        yield sink
    finally:
        with _changing:  # by identity: another list may be equal
            _captured = tuple(other for other in _captured if other is not sink)


def buffer_sizes(lines: Iterable[str]) -> dict[str, int]:
    """llama.cpp's reported allocations in bytes, by the names of `ModelInfo.memory`."""
    sizes: Counter[str] = Counter()
    for line in lines:
        if found := _SIZE.search(line):
            buffer, kind, mib = found.groups()
            mapped = kind == "model" and buffer.endswith("_Mapped")
            sizes["weights_mapped" if mapped else _KINDS[kind]] += round(float(mib) * (1 << 20))
    return dict(sizes)


def last_error(lines: list[str]) -> str:
    """The most informative line of a captured log: the first one about an error, without its prefix. It may
    quote the file, so unprintable characters are replaced and long lines truncated.
    """
    text = printable(_telling(lines))
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _telling(lines: list[str]) -> str:
    for line in lines:
        text = line.strip()
        if "error loading model:" in text:
            return text.split("error loading model:", 1)[1].strip()
    for line in lines:
        text = line.strip()
        if any(word in text.lower() for word in ("error", "failed", "invalid", "unable")):
            return text.split(": ", 1)[-1]
    return lines[-1].strip() if lines else "llama.cpp gave no reason"
