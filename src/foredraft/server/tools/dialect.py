"""The seam of tool calling: what each dialect (Hermes, Llama 3, Mistral, …) has to offer."""

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
    """How to make the model call: a constraint on its answer, and how the answer begins.

    `prefix` goes at the end of the prompt, where special tokens in it are recognised; the parser has to be
    fed it before the answer. `source` is a JSON schema as JSON text, a regular expression, or a grammar in
    llguidance's Lark, and describes the answer after the prefix.
    """

    kind: Literal["json_schema", "regex", "grammar"]
    source: str
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class ControlTokens:
    """The control tokens of a vocabulary: they have no text, so a grammar names them by their numbers.

    `markers`: those that are a dialect's markers; `others`: the rest, without those that end a text.
    """

    markers: Mapping[str, int] = field(default_factory=dict)
    others: tuple[int, ...] = ()

    def spelled(self, marker: str) -> str:
        """The marker in a Lark grammar: as its token where it has one."""
        token = self.markers.get(marker)
        return json.dumps(marker) if token is None else f"<[{token}]>"


NO_CONTROL: Final = ControlTokens()

ANY_TEXT: Final = "/(?s:.*)/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """Calls as the rules of a Lark grammar, to stand in an answer where the model may call, but need not.

    `calls` in `rules` is what follows the `marker`; `once`: only one of them. `bare`: rules for calls that
    begin without a marker, in an answer that is JSON else; `bare_in_text`, with `text_rules` for them, in one
    that is text else. `text`: the terminal for text outside calls. `layout`: markers that may stand in text.
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
    """Takes an answer apart while it is written. Feeding it in other pieces gives the same in all."""

    def feed(self, text: str) -> list[Delta]:
        """What the next piece of text makes certain."""
        ...

    def finish(self, *, cut: bool = False) -> list[Delta]:
        """What was still held back. To be called once, at the end. `cut`: the answer was cut short there, so
        what may have become a call is not text.
        """
        ...


class Dialect(Protocol):
    """How one family of chat templates writes calls."""

    @property
    def name(self) -> str: ...
    @property
    def markers(self) -> tuple[str, ...]:
        """What stands for the structure of calls. Where the vocabulary has one of them as a control token,
        its text has to reach the parser.
        """
        ...

    @property
    def one_call_a_message(self) -> bool:
        """Whether templates of this dialect refuse a message with several calls."""
        ...

    @property
    def always_read(self) -> bool:
        """Whether answers have structure, such as channels, even where nothing can be called."""
        ...

    def parser(self, tools: Sequence[Tool], new_id: Callable[[], str] = ...) -> ToolParser:
        """A parser for one answer, in which only these functions can be called."""
        ...

    def grammar(
        self, tools: Sequence[Tool], choice: ToolChoice, control: ControlTokens = ...
    ) -> Forced | None:
        """What forces the calls that the choice asks for; None where it leaves them to the model."""
        ...

    def calls(self, tools: Sequence[Tool], choice: ToolChoice, control: ControlTokens) -> Calls:
        """Calls of these functions in an answer where the choice leaves them to the model."""
        ...

    def template_id(self, call_id: str) -> str:
        """A call's id as the dialect's templates accept it. The same id always gives the same."""
        ...


def new_call_id() -> str:
    """An id in OpenAI's form: `call_` and 24 hexadecimal digits."""
    return f"call_{secrets.token_hex(12)}"
