"""What a model thinks before it answers, apart from the answer: dimmed, folded or left out."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter
from typing import TYPE_CHECKING

from rich.console import Console

from foredraft.cli.render import THOUGHT, StreamPrinter
from foredraft.cli.units import counted
from foredraft.server.openai.origins import Origins
from foredraft.server.tools.answer import chat_reader, deltas
from foredraft.server.tools.deltas import ReasoningDelta, TextDelta
from foredraft.types import TARGET, Event, TokenEvent

if TYPE_CHECKING:
    from foredraft.engine.engine import Engine
    from foredraft.engine.prompt import Prompt


class Told:
    """The answer to a prompt as its events come: its `thought`, and its `text` behind it. The answer to plain
    text is all text.
    """

    def __init__(self, engine: Engine, prompt: Prompt) -> None:
        tokenizer = engine.model.tokenizer
        self.thought = ""
        self.text = ""
        self.tokens = 0
        """Tokens until the answer began."""
        self.seconds = 0.0
        """From the first of them to the last."""
        self._origins = Origins(tokenizer)
        self._reader = None
        if not isinstance(prompt, str):
            self._reader = chat_reader(tokenizer, engine.encode(prompt), self._origins)
        self._began: float | None = None

    def read(self, event: Event) -> Iterator[tuple[str, str]]:
        """The texts that the event shows, each with its origin: a drafter, "target" or `THOUGHT`."""
        if self._reader is None:
            self.text += event.text
            yield event.text, event.origin if isinstance(event, TokenEvent) else TARGET
            return
        self._began = perf_counter() if self._began is None else self._began
        if isinstance(event, TokenEvent):
            self._origins.add(event)
        for delta in deltas(self._reader, [event]):
            if isinstance(delta, ReasoningDelta):
                self.thought += delta.text
                self._origins.take(len(delta.text))
                yield delta.text, THOUGHT
            elif isinstance(delta, TextDelta):
                yield from self._runs(delta.text)
        if not self.text and isinstance(event, TokenEvent):
            self.tokens, self.seconds = self.tokens + 1, perf_counter() - self._began

    def _runs(self, text: str) -> Iterator[tuple[str, str]]:
        self.text += text
        at = 0
        for origin, count in self._origins.take(len(text)):
            yield text[at : at + count], origin
            at += count

    @property
    def summary(self) -> str:
        """One line in place of the thought."""
        return f"thought for {counted(self.tokens, 'token')}, {self.seconds:.1f} s"


class ThoughtfulPrinter:
    """Prints an answer: with its thought, dimmed, or without it."""

    def __init__(self, printer: StreamPrinter, told: Told, *, thoughts: bool) -> None:
        self._printer = printer
        self._told = told
        self._thoughts = thoughts
        self._thinking = False

    def write(self, event: Event) -> None:
        """Show an event of the answer."""
        for text, origin in self._told.read(event):
            if origin == THOUGHT:
                self._thinking = True
                if self._thoughts:
                    self._printer.write(text, THOUGHT)
                continue
            if self._thinking and self._thoughts:
                self._printer.write("\n\n")
            self._thinking = False
            self._printer.write(text, origin)


class Folder:
    """Shows on a terminal that a model thinks, and afterwards one line about it."""

    def __init__(self, console: Console, told: Told, hint: str) -> None:
        self._console = console
        self._told = told
        self._hint = hint
        self._status = console.status("Thinking…") if console.is_terminal else None
        self._open = False
        self._over = False

    def update(self) -> None:
        """Look again whether the answer is in its thought."""
        if self._told.text:
            self.end()
        elif self._told.thought and not self._open:
            self._open = True
            if self._status is not None:
                self._status.start()

    def end(self) -> None:
        """The thought is over, if there was one."""
        if self._open and self._status is not None:
            self._status.stop()
        if self._open and not self._over:
            self._console.print(f"[dim]{self._told.summary} · {self._hint}[/]", soft_wrap=True)
            self._over = True
        self._open = False
