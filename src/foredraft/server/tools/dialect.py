"""The interface of tool-call dialects (Hermes, Llama 3, Mistral, …)."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from foredraft.server.tools.choice import Tool, ToolChoice
from foredraft.server.tools.deltas import Delta


@dataclass(frozen=True, slots=True)
class Forced:
    """A constraint that forces the model to call, and the start of the answer.

    `prefix` is appended to the prompt, where its special tokens are recognised; the parser must be fed it
    before the answer. `source` describes the answer after the prefix: a JSON schema as JSON text, a regular
    expression, or a grammar in llguidance's Lark.
    """

    kind: Literal["json_schema", "regex", "grammar"]
    source: str
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class ControlTokens:
    """The control tokens of a vocabulary: they have no text, so a grammar refers to them by number.

    `markers`: those that are markers of a dialect; `others`: the rest, except those that end a text.
    """

    markers: Mapping[str, int] = field(default_factory=dict)
    others: tuple[int, ...] = ()

    def spelled(self, marker: str) -> str:
        """The marker in a Lark grammar: its token if it has one, else its text."""
        token = self.markers.get(marker)
        return json.dumps(marker) if token is None else f"<[{token}]>"


NO_CONTROL: Final = ControlTokens()

ANY_TEXT: Final = "/(?s:.*)/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """Calls as rules of a Lark grammar, for an answer in which the model may call but need not.

    `calls` in `rules` follows the `marker`; `once`: only one call. `bare`: rules for calls without a marker
    in an answer that is otherwise JSON; `bare_in_text`, with its `text_rules`, in an answer that is otherwise
    text. `text`: the terminal for text outside calls. `layout`: markers that may occur in text.
    """

    marker: str
    rules: Sequence[str]
    once: bool
    bare: Sequence[str] = ()
    bare_in_text: Sequence[str] = ()
    text_rules: Sequence[str] = ()
    text: str = ANY_TEXT
    layout: Sequence[str] = ()


class ToolParser(Protocol):
    """Splits an answer into deltas while it is written. The total does not depend on how the text is cut."""

    def feed(self, text: str) -> list[Delta]:
        """The deltas that are certain after the next piece of text."""
        ...

    def finish(self, *, cut: bool = False) -> list[Delta]:
        """The deltas that were held back. Must be called once, at the end. `cut`: the answer was cut off, so
        text that could be the start of a call is not shown.
        """
        ...

    def trace(self, spans: list[tuple[int, int]]) -> None:
        """From now on, add to `spans` where the text and the reasoning in the deltas come from: start and
        end, in order, in the characters of all text that was fed.
        """
        ...


class Dialect(Protocol):
    """The form in which a family of chat templates writes calls."""

    @property
    def name(self) -> str: ...
    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that form the structure of calls. If one of them is a control token in the vocabulary, its
        text must be passed to the parser.
        """
        ...

    @property
    def one_call_a_message(self) -> bool:
        """Whether templates of this dialect refuse a message with several calls."""
        ...

    @property
    def always_read(self) -> bool:
        """Whether answers have structure, such as channels, even without tools."""
        ...

    def parser(self, tools: Sequence[Tool], new_id: Callable[[], str] = ...) -> ToolParser:
        """A parser for one answer, in which only these functions can be called."""
        ...

    def grammar(
        self, tools: Sequence[Tool], choice: ToolChoice, control: ControlTokens = ...
    ) -> Forced | None:
        """The constraint for the calls that the choice requires; None if it requires none."""
        ...

    def calls(self, tools: Sequence[Tool], choice: ToolChoice, control: ControlTokens) -> Calls:
        """Optional calls of these functions in an answer."""
        ...

    def template_id(self, call_id: str) -> str:
        """A call's id in the form that the templates accept. Deterministic."""
        ...


def new_call_id() -> str:
    """An id in OpenAI's form: `call_` and 24 hexadecimal digits."""
    return f"call_{secrets.token_hex(12)}"
