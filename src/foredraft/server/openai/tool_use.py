"""Tools in OpenAI's APIs: written into the prompt, and parsed from the answer."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from foredraft.engine.prompt import check_size, encode_chat, normalised
from foredraft.errors import RequestError
from foredraft.protocols import Tokenizer
from foredraft.sampling.constraint import compile_constraint
from foredraft.server.openai.logprobs import AnswerText
from foredraft.server.template_variables import Wishes, template_variables
from foredraft.server.tools.choice import Tool, ToolChoice, check_choice, check_tools
from foredraft.server.tools.deltas import CallEnd, CallStart, Delta, TextDelta, joined
from foredraft.server.tools.detect import spoken_dialect, text_arguments, tools_in_message
from foredraft.server.tools.dialect import ControlTokens, Dialect, Forced, ToolParser
from foredraft.server.tools.history import plain_messages, template_messages
from foredraft.server.tools.offered import offered_grammar
from foredraft.server.tools.prompt import with_tools
from foredraft.types import Constraint, Event, Message, ModelInfo, TokenEvent


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools that a request may call, and the dialect its model uses for calls."""

    tokenizer: Tokenizer
    dialect: Dialect
    tools: tuple[Tool, ...]
    choice: ToolChoice
    forced: Forced | None = None
    markers: Mapping[int, str] = field(default_factory=dict)

    @property
    def offered(self) -> tuple[Tool, ...]:
        """The functions that can be called."""
        return self.choice.callable(self.tools)

    def check_size(self, messages: Sequence[Message], info: ModelInfo) -> None:
        """Raises ContextLengthError, before rendering, for a conversation that does not fit any context."""
        tools = [(tool.description, tool.parameters) for tool in self.offered]
        check_size("The conversation", (messages, tools), info)

    @property
    def bound(self) -> bool:
        """Whether calls must follow a grammar: they are forced, strict, or limited to one."""
        strict = any(tool.strict for tool in self.offered)
        return bool(self.offered) and (self.choice.forced or strict or not self.choice.parallel)

    def encode(self, messages: Sequence[Message], begun: str = "", wishes: Wishes | None = None) -> list[int]:
        """The prompt with the beginning of the answer. Raises RequestError if the model's template rejects it
        or cannot honour `wishes`.
        """
        tokenizer, offered, given = self.tokenizer, self.offered, normalised(messages)
        template, traits = tokenizer.chat_template or "", tokenizer.template_traits
        variables = template_variables(traits, wishes or Wishes())
        if "tools" in traits.variables:
            given = template_messages(given, self.dialect, text_arguments=text_arguments(template))
            if offered:
                variables["tools"] = [tool.as_message() for tool in offered]
        elif tools_in_message(template):
            given = with_tools(plain_messages(given, ()), offered)
        else:
            given = plain_messages(given, offered)
        tokens = encode_chat(tokenizer, given, variables, begun=begun)
        if self.forced is not None and self.forced.prefix:
            tokens += tokenizer.encode(self.forced.prefix, special=True)
        return tokens

    def constraint(self, answer: Mapping[str, Any] | None) -> Constraint | None:
        """The constraint of an answer that may or must contain calls. Otherwise it is any text, or JSON of
        the schema `answer`. None: calls are not constrained, and there is no schema.
        """
        if self.forced is not None:
            return Constraint(self.forced.kind, self.forced.source)
        if not self.bound and (answer is None or not self.offered):
            return None
        control = control_tokens(self.tokenizer, self.markers)
        return Constraint("grammar", offered_grammar(self.dialect, self.tools, self.choice, answer, control))

    def check(self, constraint: Constraint, answer: Mapping[str, Any] | None) -> None:
        """Check that the constraint of these tools and `answer` can be enforced.

        Raises RequestError that names the schema at fault: the client sent no grammar.
        """
        try:
            compile_constraint(constraint, self.tokenizer)
        except RequestError:
            if answer is not None:
                compile_constraint(Constraint("json_schema", json.dumps(answer)), self.tokenizer)
            for tool in self.offered:
                _check_parameters(tool, self.tokenizer)
            raise

    def reader(self) -> AnswerReader | None:
        """A reader for one answer; None if nothing can be called and the text has no structure."""
        if not self.offered and not self.dialect.always_read:
            return None
        parser = self.dialect.parser(self.offered)
        reader = AnswerReader(parser, self.markers, self.tokenizer, forced=self.forced is not None)
        if self.forced is not None and self.forced.prefix:
            reader.begin(self.forced.prefix)
        return reader


def tool_use(
    tokenizer: Tokenizer, tools: object, choice: object, *, parallel: bool, flat: bool = False
) -> ToolUse:
    """The validated tools of a request. `flat`: in the form of the Responses API.

    Raises RequestError with the reason.
    """
    checked = check_tools(tools, flat=flat)
    chosen = check_choice(choice, checked, parallel=parallel, flat=flat)
    dialect = spoken_dialect(tokenizer.chat_template or "", tokenizer.template_traits.variables)
    if not chosen.callable(checked) and not dialect.always_read:
        return ToolUse(tokenizer, dialect, checked, chosen)
    markers = control_markers(tokenizer, dialect)
    control = ControlTokens({marker: token for token, marker in markers.items()})
    return ToolUse(tokenizer, dialect, checked, chosen, dialect.grammar(checked, chosen, control), markers)


def _check_parameters(tool: Tool, tokenizer: Tokenizer) -> None:
    try:
        compile_constraint(
            Constraint("json_schema", json.dumps(dict(tool.parameters)), tool.strict), tokenizer
        )
    except RequestError as error:
        raise RequestError(
            f"The parameters of the function {tool.name!r} cannot be enforced. {error.message}",
            hint='Set "strict" to false, unless a call is required, so that they are not enforced.',
        ) from None


# --- control tokens ------------------------------------------------------------------------------------


def control_markers(tokenizer: Tokenizer, dialect: Dialect) -> dict[int, str]:
    """The dialect's markers that are control tokens in this vocabulary: such tokens have no text."""
    found: dict[int, str] = {}
    for marker in dialect.markers:
        tokens = tokenizer.encode(marker, special=True)
        if len(tokens) == 1 and not tokenizer.token_bytes(tokens[0]):
            found[tokens[0]] = marker
    return found


_textless: WeakKeyDictionary[Tokenizer, tuple[int, ...]] = WeakKeyDictionary()
"""Cache of a vocabulary's control tokens: finding them requires looking at every token."""


def control_tokens(tokenizer: Tokenizer, markers: Mapping[int, str]) -> ControlTokens:
    """All control tokens that do not end a text, with the markers among them by their text."""
    try:
        found = _textless[tokenizer]
    except (KeyError, TypeError):
        every, ends = range(tokenizer.vocab_size), tokenizer.end_tokens
        found = tuple(token for token in every if token not in ends and not tokenizer.token_bytes(token))
        with suppress(TypeError):  # a tokenizer without weak references: search every time
            _textless[tokenizer] = found
    others = tuple(token for token in found if token not in markers)
    return ControlTokens({marker: token for token, marker in markers.items()}, others)


# --- the answer ----------------------------------------------------------------------------------------


class AnswerReader:
    """Splits one answer into text and calls as it is generated.

    A marker that is a control token has no text and is inserted at its position. Text before it may come
    later, because it could be the beginning of a stop string; the marker waits for it. An answer that is
    `forced` to call contains no text, whatever it ends with.
    """

    def __init__(
        self, parser: ToolParser, markers: Mapping[int, str], tokenizer: Tokenizer, *, forced: bool = False
    ) -> None:
        self._parser = parser
        self._markers = markers
        self._places = AnswerText(tokenizer)
        self._shown = 0
        self._waiting: deque[tuple[int, str]] = deque()
        self._pending: list[Delta] = []
        self._forced = forced
        self._begun = 0
        self._whole = 0

    @property
    def called(self) -> bool:
        """Whether there are calls and all are complete: only then can a client execute them."""
        return 0 < self._begun == self._whole

    def begin(self, prefix: str) -> None:
        """Read the beginning of the answer that is part of the prompt."""
        self._pending = self._parser.feed(prefix)

    def read(self, event: TokenEvent) -> list[Delta]:
        """The deltas of a token."""
        if self._markers:
            place = self._places.add(event.token)
            if event.token in self._markers:
                self._waiting.append((place, self._markers[event.token]))
        return self._given(self._parser.feed(self._with_markers(event.text)))

    def end(self, text: str, *, cut: bool = False) -> list[Delta]:
        """The deltas of the answer's last text and of held-back text. `cut`: the answer was cut off, possibly
        within a character, which is then not shown and may have belonged to a marker.
        """
        if cut:
            text = text.rstrip("\ufffd")
        last = self._parser.feed(self._with_markers(text))
        return self._given(last + self._parser.finish(cut=cut or self._forced))

    def _with_markers(self, text: str) -> str:
        """The text with its markers inserted."""
        pieces: list[str] = []
        while self._waiting and self._waiting[0][0] <= self._shown + len(text):
            place, marker = self._waiting.popleft()
            pieces += [text[: place - self._shown], marker]
            text = text[place - self._shown :]
            self._shown = place
        self._shown += len(text)
        return "".join([*pieces, text])

    def _given(self, deltas: list[Delta]) -> list[Delta]:
        pending, self._pending = self._pending, []
        given = pending + deltas
        self._begun += sum(isinstance(delta, CallStart) for delta in given)
        self._whole += sum(isinstance(delta, CallEnd) for delta in given)
        return given


def deltas(reader: AnswerReader | None, events: Sequence[Event]) -> list[Delta]:
    """The deltas of one answer's events. `reader` finds tool calls; None: there are none."""
    if reader is None:
        text = "".join(event.text for event in events)
        return [TextDelta(text)] if text else []
    found: list[Delta] = []
    for event in events:
        if isinstance(event, TokenEvent):
            found += reader.read(event)
        else:
            found += reader.end(event.text, cut=event.reason.cut)
    return joined(found)
