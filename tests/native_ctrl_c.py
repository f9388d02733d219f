"""Ctrl-C at a moment when llama.cpp computes, however fast the machine is."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from foredraft.backends.llamacpp import abi
from foredraft.backends.llamacpp.binding import lib

ABORTED = 2
"""What `llama_decode` returns of a forward that was ended in its middle."""

_LONGEST = 10.0


def press_in_a_forward(patch: pytest.MonkeyPatch) -> list[int]:
    """From now on the first forward that asks whether it shall go on finds Ctrl-C pressed, and goes on when
    that was heard. Returns what every `llama_decode` returned, filled as they come.
    """
    made, decode = abi.ggml_abort_callback, lib.llama_decode
    statuses: list[int] = []
    pressed: list[bool] = []

    def wrapped(function: Callable[[Any], bool] | None = None) -> Any:
        if function is None:
            return made()

        def asked(data: Any) -> bool:
            if not pressed:
                pressed.append(True)
                signal.raise_signal(signal.SIGINT)
                end = time.monotonic() + _LONGEST
                while not function(data) and time.monotonic() < end:
                    time.sleep(0.01)
            return bool(function(data))

        return made(asked)

    def watched(context: Any, batch: Any) -> int:
        statuses.append(-1)
        statuses[-1] = int(decode(context, batch))
        return statuses[-1]

    patch.setattr(abi, "ggml_abort_callback", wrapped)
    patch.setattr(lib, "llama_decode", watched)
    return statuses
