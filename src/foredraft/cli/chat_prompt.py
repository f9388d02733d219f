"""The input line of a chat on a terminal."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import has_focus
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import Output, create_output
from prompt_toolkit.shortcuts import CompleteStyle

PROMPT = "> "


class PromptReader:
    """Line editing with history. Enter sends; Alt-Enter, or Enter after a backslash, starts a new line.

    Ctrl-C clears the line, and raises KeyboardInterrupt when it is empty. `complain` is called when the
    history cannot be stored; `source` and `output` replace the terminal in tests.
    """

    def __init__(
        self,
        history: Path | None,
        commands: Sequence[str] = (),
        *,
        complain: Callable[[str], None],
        source: Input | None = None,
        output: Output | None = None,
    ) -> None:
        self._session: PromptSession[str] = PromptSession(
            PROMPT,
            multiline=True,
            key_bindings=_bindings(),
            history=_open_history(history, complain),
            completer=WordCompleter([f"/{name}" for name in commands], sentence=True),
            complete_while_typing=False,
            complete_style=CompleteStyle.READLINE_LIKE,
            input=source,
            # Standard output may be a file, which should only get the answers.
            output=output or create_output(always_prefer_tty=True),
        )

    def __call__(self) -> str:
        # A byte that is not UTF-8 comes as a lone surrogate, which tokenizers reject.
        return self._session.prompt().encode(errors="surrogateescape").decode(errors="replace")


class PrivateHistory(FileHistory):
    """History of typed lines in a file only its owner can read. Raises OSError if it cannot be opened."""

    def __init__(self, path: Path, complain: Callable[[str], None]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        os.close(descriptor)
        path.chmod(0o600)
        self._complain = complain
        super().__init__(str(path))

    def store_string(self, string: str) -> None:
        try:
            super().store_string(string)
        except OSError as error:
            self._complain(_unsaved(self.filename, error))


def _open_history(path: Path | None, complain: Callable[[str], None]) -> History:
    if path is not None:
        try:
            return PrivateHistory(path, complain)
        except OSError as error:
            complain(_unsaved(path, error))
    return InMemoryHistory()


def _unsaved(path: object, error: OSError) -> str:
    return f"Typed lines are not kept: {path}: {error.strerror}."


def _bindings() -> KeyBindings:
    bindings = KeyBindings()
    typing = has_focus(DEFAULT_BUFFER)  # not while searching the history

    @bindings.add("enter", filter=typing)
    def send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.text_before_cursor.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @bindings.add("escape", "enter", filter=typing)
    def new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @bindings.add("c-c", filter=typing)
    @bindings.add("<sigint>", filter=typing)
    def interrupt(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt(), style="class:aborting")

    return bindings
