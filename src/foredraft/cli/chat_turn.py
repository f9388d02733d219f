"""One turn of a chat: the answer as it comes, stopped by Ctrl-C, kept in the conversation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from foredraft.cli.chat_session import Conversation
from foredraft.cli.chat_stats import Totals
from foredraft.cli.interrupt import CtrlC
from foredraft.cli.render import StreamPrinter, closing_line, ending_note
from foredraft.cli.sampling import Sampling
from foredraft.config import Speculation, parse_speculation
from foredraft.engine.prompt import may_be_longer
from foredraft.engine.streams import fold
from foredraft.errors import ContextLengthError, ForedraftError, RequestError
from foredraft.types import (
    TARGET,
    Completion,
    Event,
    FinishEvent,
    FinishReason,
    Message,
    SamplingParams,
    TokenEvent,
)

if TYPE_CHECKING:
    from foredraft.engine.engine import Engine

FULL = "/save FILE keeps the conversation, /reset starts a new one"


def answer(
    engine: Engine,
    messages: Sequence[Message],
    params: SamplingParams,
    show: Callable[[str, str], None],
    ctrl_c: CtrlC,
) -> Completion:
    """Generate an answer; `show(text, origin)` gets every piece of it. Ctrl-C ends it with reason "abort".

    Steps the engine itself instead of using `Engine.stream`: a long prompt is many steps without an event
    to stop at, and what was counted up to the stop is wanted too. Raises what `Engine.add` raises.
    """
    events: list[Event] = []

    def take(new: Sequence[Event]) -> None:
        for event in new:
            if event.request == request:
                events.append(event)
                show(event.text, event.origin if isinstance(event, TokenEvent) else TARGET)

    request = engine.add(messages, params)
    try:
        while not ctrl_c.pressed and not (events and isinstance(events[-1], FinishEvent)):
            take(engine.step())
    except KeyboardInterrupt:  # raised past `ctrl_c`: a stop all the same
        pass
    finally:
        take(engine.abort(request))  # nothing, when it is finished
    return fold(events)


def _nobody_to_ask(question: str) -> bool:
    raise RequestError(f"{question} Nobody can be asked here.", hint="Choose another name.")


@dataclass(slots=True)
class Chat:
    """A session: what turns and commands act on. `notes` is where everything but the answers goes.

    `load` makes the engine of another model; `confirm` asks the user, where there is one.
    """

    engine: Engine
    conversation: Conversation
    sampling: Sampling
    printer: StreamPrinter
    notes: Console
    speculation: str
    load: Callable[[str | None, Speculation], Engine]
    confirm: Callable[[str], bool] = _nobody_to_ask
    totals: Totals = field(default_factory=Totals)
    leaving: bool = False
    _retries: int = 0
    _legend: str = ""

    @property
    def params(self) -> SamplingParams:
        """How the next answer is sampled. With a seed, an answer that is tried again has the next one."""
        params = self.sampling.params(self.engine.model.info.recommended)
        if params.seed is not None and self._retries:
            params = replace(params, seed=params.seed + self._retries)
        return params

    def about(self) -> str:
        """What answers, and how, in one line."""
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
        """Go on with another model. Raises what loading it raises; the old one then stays."""
        engine = self.load(named, parse_speculation(self.speculation))
        self.engine.close()
        self.engine = engine

    def close(self) -> None:
        """Free the model."""
        self.engine.close()

    def ask(self, question: str) -> None:
        """Answer a question and keep both. What goes wrong is said; the conversation is then as before."""
        self._retries = 0
        self._try(question)

    def retry(self) -> None:
        """Answer the last question again; the new answer takes the place of the old. Raises RequestError."""
        kept = list(self.conversation.messages)
        question = self.conversation.take_back()
        turns = self.conversation.turns
        self._retries += 1
        try:
            self._try(question)
        finally:
            if self.conversation.turns == turns:  # no answer came: the old one stays
                self.conversation.messages = kept

    def _try(self, question: str) -> None:
        with CtrlC() as ctrl_c:
            try:
                self._ask(question, ctrl_c)
            except ContextLengthError as error:
                self.complain(error)
                self.say(f"The conversation is as it was before. {self._what_to_do()}")
            except ForedraftError as error:
                self.complain(error)

    def _ask(self, question: str, ctrl_c: CtrlC) -> None:
        messages = self.conversation.asking(question)
        completion = answer(self.engine, messages, self.params, self.printer.write, ctrl_c)
        self.printer.end()
        self.totals.add(completion)
        self._keep(question, completion)
        self._close(completion)

    def _keep(self, question: str, completion: Completion) -> None:
        whole = completion.finish_reason not in (FinishReason.ABORT, FinishReason.ERROR)
        if whole or completion.text:
            self.conversation.add_turn(question, completion.text)
        else:
            self.say("There was no answer yet, so the question is not kept.")

    def _close(self, completion: Completion) -> None:
        """What follows an answer: who has which colour, what it took, and what ended it, if not itself."""
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
        note = ending_note(completion, self.engine.model.info.context_length)
        if note:
            full = completion.finish_reason is FinishReason.LENGTH
            self.say(f"{note} {self._what_to_do()}" if full else note)

    def _what_to_do(self) -> str:
        """About a context that is full."""
        larger = ", --ctx N makes room for more" if may_be_longer(self.engine.model.info) else ""
        return f"{FULL}{larger}."

    def say(self, text: str) -> None:
        """A line about the session."""
        self.notes.print(escape(text), soft_wrap=not self.notes.is_terminal)

    def complain(self, error: ForedraftError) -> None:
        """An error that the session survives."""
        self.notes.print(f"[bold red]Error:[/] {escape(error.message)}", soft_wrap=not self.notes.is_terminal)
        if error.hint:
            self.say(error.hint)
