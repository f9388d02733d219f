"""Input of a chat: a terminal with line editing and history, or a pipe."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from foredraft.cli.prompting import typed_at
from foredraft.errors import ConfigError

ReadLine = Callable[[], str]
"""Returns the next input, which may contain newlines. Raises EOFError at the end, KeyboardInterrupt."""


def is_interactive() -> bool:
    """Whether a user can type here: input from a terminal, and a terminal for the prompt."""
    return typed_at() and any(stream and stream.isatty() for stream in (sys.stdout, sys.stderr))


def open_input(history: Path | None, commands: Sequence[str], complain: Callable[[str], None]) -> ReadLine:
    """Open the reader for this process's standard input.

    `history` is the file for typed lines, None to keep none; `commands` are completed with Tab.
    """
    if sys.stdin is None:
        raise ConfigError(
            "Standard input is closed: there are no turns to read.",
            hint="Run it in a terminal, or pipe lines into it.",
        )
    if not is_interactive():
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")  # an invalid byte must not end the session
        return lines_of(sys.stdin)
    from foredraft.cli.chat_prompt import PromptReader  # prompt_toolkit slow to import

    return PromptReader(history, commands, complain=complain)


def lines_of(stream: TextIO) -> ReadLine:
    """Read one line at a time; a backslash at the end of a line joins it with the next."""

    def read() -> str:
        lines: list[str] = []
        while line := stream.readline():
            line = line.rstrip("\r\n")
            if not line.endswith("\\"):
                return "\n".join([*lines, line])
            lines.append(line[:-1])
        if not lines:
            raise EOFError
        return "\n".join(lines)

    return read
