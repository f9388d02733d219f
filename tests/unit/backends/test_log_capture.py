"""What llama.cpp logs while somebody listens."""

from __future__ import annotations

import ctypes
import sys
from contextlib import ExitStack
from types import FrameType
from typing import Any

from foredraft.backends.llamacpp import log

NOTHING = ctypes.c_void_p(None)


def test_lines_are_collected_while_the_block_lasts() -> None:
    with log.capture() as outer:
        log._receive(2, b"one", NOTHING)
        with log.capture() as inner:
            log._receive(5, b"two\n", NOTHING)  # goes on with the line before, if there is one
    log._receive(2, b"three\n", NOTHING)
    assert (outer, inner) == (["onetwo\n"], ["two\n"])


def test_a_capture_that_ends_while_a_line_comes_takes_it_from_no_other() -> None:
    """As when another thread runs between two lines of `_receive`; a trace function does."""
    first = ExitStack()
    ended = first.enter_context(log.capture())

    def between(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code is not log._receive.__code__:
            return None
        if event == "line" and ended:
            first.close()
        return between

    before = sys.gettrace()
    with log.capture() as other:
        sys.settrace(between)
        try:
            log._receive(2, b"for both\n", NOTHING)
        finally:
            sys.settrace(before)
    assert ended == other == ["for both\n"]
