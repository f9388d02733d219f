"""Runs work on a stack that is large enough for very long words.

llama.cpp splits texts with C++'s regular expressions, which recurse for every character of a match and use
324 bytes of stack each: with the tokenizers of GPT-4o, DeepSeek V3, BLOOM and others, 26,000 letters without
a space crash a process whose threads have the usual 8 MB.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import TypeVar

from foredraft.errors import RequestError

Result = TypeVar("Result")

SAFE = 512
"""Characters without a word boundary for which every thread has enough stack: macOS gives threads 512 KiB."""

MOST = 1 << 18
"""Maximum characters without a word boundary: their stack is 513 MiB of address space, of which 170 MiB are
used.
"""

_FRAME = 1024
_BASE = 1 << 20
_RUN = re.compile(r"\S+|\s+", re.ASCII)
_starting = threading.Lock()


def longest_run(text: str) -> int:
    """The length of the longest word, or of the longest white space between two, in characters."""
    return max((run.end() - run.start() for run in _RUN.finditer(text)), default=0)


def with_room_for(text: str, work: Callable[[], Result]) -> Result:
    """Run `work`, which splits this text, and return its result. Raises what it raises, and RequestError for
    a word that is too long.
    """
    run = longest_run(text) if len(text) > SAFE else 0
    if run <= SAFE:
        return work()
    if run > MOST:
        raise RequestError(
            f"A word of {run} characters is too long for this tokenizer; the maximum is {MOST}.",
            hint="Insert spaces or newlines.",
        )
    return _on_a_stack(_BASE + 2 * run * _FRAME, work)  # a match may be a word and the white space after it


def _on_a_stack(size: int, work: Callable[[], Result]) -> Result:
    made: list[Result] = []
    failed: list[BaseException] = []

    def go() -> None:
        try:
            made.append(work())
        except BaseException as error:  # noqa: BLE001 - raised in the caller
            failed.append(error)

    thread = threading.Thread(target=go, name="foredraft-deep")
    with _starting:  # the size applies to all threads that start meanwhile
        usual = threading.stack_size(size)
        try:
            thread.start()
        finally:
            threading.stack_size(usual)
    thread.join()
    if failed:
        raise failed[0]
    return made[0]
