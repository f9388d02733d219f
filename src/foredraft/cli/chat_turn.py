"""One turn of a chat: the answer is shown as it is generated, stopped by Ctrl-C, and added to the
conversation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from foredraft.cli.chat_session import Content, Conversation
from foredraft.cli.chat_stats import Totals
from foredraft.cli.interrupt import CtrlC
from foredraft.cli.render import THOUGHT, StreamPrinter, closing_line, ending_note
from foredraft.cli.sampling import Sampling
from foredraft.cli.thoughts import Folder, ThoughtfulPrinter, Told
from foredraft.config import Speculation, parse_speculation
from foredraft.engine.prompt import longer_by
from foredraft.engine.streams import fold
from foredraft.errors import ContextLengthError, ForedraftError, RequestError
from foredraft.types import (
    Completion,
    Event,
    FinishEvent,
    FinishReason,
    Message,
    SamplingParams,
)

if TYPE_CHECKING:
    from foredraft.engine.engine import Engine

FULL = "/save FILE keeps the conversation, /reset starts a new one"


def answer(
    engine: Engine,
    messages: Sequence[Message],
    params: SamplingParams,
    show: Callable[[Event], None],
    ctrl_c: CtrlC,
) -> Completion:
    """Generate an answer; `show` is called with every event. Ctrl-C ends it with reason
    "abort".

    Steps the engine itself instead of using `Engine.stream`: a long prompt takes many steps without an event
    to stop at, and the counts up to the stop are needed too. Raises what `Engine.add` raises.
    """
    events: list[Event] = []

    def take(new: Sequence[Event]) -> None:
        for event in new:
            if event.request == request:
                events.append(event)
                show(event)

    request = engine.add(messages, params)
    try:
        while not ctrl_c.pressed and not (events and isinstance(events[-1], FinishEvent)):
            take(engine.step())
    except KeyboardInterrupt:  # raised before `ctrl_c` took over: also a stop
        pass
    finally:
        take(engine.abort(request))  # no events if it is finished
    return fold(events)


def _nobody_to_ask(question: str) -> bool:
    raise RequestError(f"{question} There is no terminal to ask on.", hint="Choose another name.")


@dataclass(slots=True)
class Chat:
    """The session that turns and commands work on. `notes` is the console for everything but answers.

    `model` is what the engine was loaded by; `load` creates that of another model; `confirm` asks the user,
    if there is one.
    """

    engine: Engine
    conversation: Conversation
    sampling: Sampling
    printer: StreamPrinter
    notes: Console
    speculation: str
    load: Callable[[str | None, Speculation], Engine]
    model: str | None = None
    confirm: Callable[[str], bool] = _nobody_to_ask
    totals: Totals = field(default_factory=Totals)
    leaving: bool = False
    failed: bool = False
    """Whether a slash command failed."""
    thoughts: bool = False
    """Whether thoughts are shown; else a line stands for each."""
    thought: str = ""
    """The last one."""
    _retries: int = 0
    _legend: str = ""

    @property
    def params(self) -> SamplingParams:
        """Sampling of the next answer. With a seed, each retry of an answer uses the next seed."""
        params = self.sampling.params(self.engine.model.info.recommended)
        if params.seed is not None and self._retries:
            params = replace(params, seed=params.seed + self._retries)
        return params

    def about(self) -> str:
        """The model and its settings in one line."""
        info, capabilities = self.engine.model.info, self.engine.model.capabilities
        params = self.params
        parts = [
            info.name,
            info.quantization,
            f"context {info.context_length:,}",
            f"temperature {params.temperature:g}",
            f"speculation {self.speculation}",
            "exact" if capabilities.batch_invariant else f"not exact: {capabilities.invariance_note}",
        ]
        return " · ".join(part for part in parts if part)

    def use_model(self, named: str) -> None:
        """Continue with another model. Raises what loading it raises; the old model then stays."""
        engine = self.load(named, parse_speculation(self.speculation))
        self.engine.close()
        self.engine, self.model = engine, named

    def load_lost(self) -> None:
        """Load the model again if a machine that computes for it was lost. Raises what loading raises; the
        next call then tries again.
        """
        if not self.engine.lost:
            return
        self.say("Loading the model again, because a machine that computes for it was lost.")
        self.engine.close()  # there may be no memory for both
        self.engine = self.load(self.model, parse_speculation(self.speculation))

    def close(self) -> None:
        """Free the model."""
        self.engine.close()

    def ask(self, question: str) -> None:
        """Answer a question and keep both. An error is shown, and the conversation is then unchanged."""
        self._retries = 0
        self._try(self.conversation.with_images(question))

    def retry(self) -> None:
        """Answer the last question again; the new answer replaces the old one. Raises RequestError."""
        kept = list(self.conversation.messages)
        question = self.conversation.take_back()
        turns = self.conversation.turns
        self._retries += 1
        try:
            self._try(question)
        finally:
            if self.conversation.turns == turns:  # no new answer: the old one stays
                self.conversation.messages = kept

    def _try(self, question: Content) -> None:
        try:
            self.load_lost()
        except ForedraftError as error:
            self.complain(error)
            self.say("The conversation is unchanged. The next message tries to load the model again.")
            return
        with CtrlC() as ctrl_c:
            try:
                self._ask(question, ctrl_c)
            except ContextLengthError as error:
                self.complain(error)
                self.say(f"The conversation is unchanged. {self._what_to_do()}")
            except ForedraftError as error:
                self.complain(error)

    def _ask(self, question: Content, ctrl_c: CtrlC) -> None:
        messages = self.conversation.asking(question)
        told = Told(self.engine, messages)
        writer = ThoughtfulPrinter(self.printer, told, thoughts=self.thoughts)
        folder = Folder(self.notes, told, "/thought shows it")

        def show(event: Event) -> None:
            if self.thoughts:
                writer.write(event)
                return
            for text, origin in told.read(event):
                folder.update()
                if origin != THOUGHT:
                    self.printer.write(text, origin)

        try:
            completion = answer(self.engine, messages, self.params, show, ctrl_c)
        finally:
            folder.end()
        self.printer.end()
        self.thought = told.thought
        self.totals.add(completion)
        self._keep(question, completion, told)
        self._close(completion)

    def _keep(self, question: Content, completion: Completion, told: Told) -> None:
        whole = completion.finish_reason not in (FinishReason.ABORT, FinishReason.ERROR)
        if whole or told.text:
            self.conversation.add_turn(question, told.text, told.thought)
        else:
            self.say("There was no answer yet, so the question is not kept.")

    def _close(self, completion: Completion) -> None:
        """Show what follows an answer: the colours' legend, its statistics, and why it ended early."""
        legend = self.printer.legend()
        if legend != self._legend:
            self.notes.print(legend, soft_wrap=not self.notes.is_terminal)
            self._legend = legend
        stopped = "stopped · " if completion.finish_reason is FinishReason.ABORT else ""
        self.notes.print(
            f"[dim]{escape(stopped + closing_line(completion))}[/]", soft_wrap=not self.notes.is_terminal
        )
        if completion.error:
            self.complain(ForedraftError(f"Generation failed: {completion.error}"))
        if self.engine.lost:
            self.say("The conversation is kept, and the model is loaded again at the next message.")
        note = ending_note(completion, self.engine.model.info.context_length)
        if note:
            full = completion.finish_reason is FinishReason.LENGTH
            self.say(f"{note} {self._what_to_do()}" if full else note)

    def _what_to_do(self) -> str:
        """The hint for a full context."""
        flags = longer_by(self.engine.model.info)
        return f"{FULL}, {flags} sets a larger context." if flags else f"{FULL}."

    def say(self, text: str) -> None:
        """Show a line about the session."""
        self.notes.print(escape(text), soft_wrap=not self.notes.is_terminal)

    def complain(self, error: ForedraftError) -> None:
        """Show an error that does not end the session."""
        self.notes.print(f"[bold red]Error:[/] {escape(error.message)}", soft_wrap=not self.notes.is_terminal)
        if error.hint:
            self.say(error.hint)
