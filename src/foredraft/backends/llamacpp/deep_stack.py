"""A stack that is deep enough for one long word.

llama.cpp splits texts with C++'s regular expressions, which call themselves for every character of a match,
324 bytes of stack each: with the tokenizers of GPT-4o, DeepSeek V3, BLOOM and others, 26,000 letters without
a space end a process whose threads have the usual 8 MB.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import TypeVar

from foredraft.errors import RequestError

Result = TypeVar("Result")

SAFE = 512
"""Characters without a border that every thread has room for: macOS gives them 512 KiB."""

MOST = 1 << 18
"""Characters without a border that are taken apart at all: the stack for them is 513 MiB of addresses, of
which 170 MiB are used.
"""

_FRAME = 1024
_BASE = 1 << 20
_RUN = re.compile(r"\S+|\s+", re.ASCII)
_starting = threading.Lock()


def longest_run(text: str) -> int:
    """Characters of the longest word, or of the longest white space between two."""
    return max((run.end() - run.start() for run in _RUN.finditer(text)), default=0)


def with_room_for(text: str, work: Callable[[], Result]) -> Result:
    """What `work`, which splits this text, returns. Raises what it raises, and RequestError for a word that
    is too long to be split.
    """
    run = longest_run(text) if len(text) > SAFE else 0
    if run <= SAFE:
        return work()
    if run > MOST:
        raise RequestError(
            f"A word of {run} characters is too long for this tokenizer; at most {MOST} may have no space.",
            hint="Break it up with spaces or newlines.",
        )
    return _on_a_stack(_BASE + 2 * run * _FRAME, work)  # a match may be a word and the white space after it


def _on_a_stack(size: int, work: Callable[[], Result]) -> Result:
    made: list[Result] = []
    failed: list[BaseException] = []

    def go() -> None:
        try:
            made.append(work())
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever asked
            failed.append(error)

    thread = threading.Thread(target=go, name="foredraft-deep")
    with _starting:  # the size is that of all threads that start meanwhile
        usual = threading.stack_size(size)
        try:
            thread.start()
        finally:
            threading.stack_size(usual)
    thread.join()
    if failed:
        raise failed[0]
    return made[0]
