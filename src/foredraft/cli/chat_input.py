"""Where the lines of a chat come from: a terminal with editing and history, or a pipe."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from foredraft.cli.prompting import typed_at
from foredraft.errors import ConfigError

ReadLine = Callable[[], str]
"""The next thing typed, newlines inside it included. Raises EOFError at the end, KeyboardInterrupt."""


def is_interactive() -> bool:
    """Whether someone can type here: input from a terminal, and one to show the line on."""
    return typed_at() and any(stream and stream.isatty() for stream in (sys.stdout, sys.stderr))


def open_input(history: Path | None, commands: Sequence[str], complain: Callable[[str], None]) -> ReadLine:
    """The reader for this process's standard input.

    `history` is the file that typed lines are kept in, None for none; `commands` are completed with Tab.
    """
    if sys.stdin is None:
        raise ConfigError(
            "Standard input is closed: there is nothing to read turns from.",
            hint="Run it in a terminal, or pipe lines in.",
        )
    if not is_interactive():
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")  # one bad byte must not end the session
        return lines_of(sys.stdin)
    from foredraft.cli.chat_prompt import PromptReader  # prompt_toolkit takes a while to import

    return PromptReader(history, commands, complain=complain)


def lines_of(stream: TextIO) -> ReadLine:
    """Reads a line at a time; a backslash at the end of a line joins the next one to it."""

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
