"""Tools in OpenAI's APIs: written into the prompt, and parsed from the answer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

from foredraft.engine.chat_images import MarkedMessages, mark_images
from foredraft.engine.continued import encode_continued
from foredraft.engine.prompt import check_size, encode_chat, normalised
from foredraft.engine.thinking import thinking_of
from foredraft.errors import RequestError
from foredraft.images import EncodedPrompt
from foredraft.protocols import Tokenizer, Vision
from foredraft.sampling.constraint import compile_constraint
from foredraft.server.openai.origins import Origins
from foredraft.server.template_variables import Wishes, template_variables
from foredraft.server.tools.answer import AnswerReader, answer_parser, control_markers
from foredraft.server.tools.choice import Tool, ToolChoice, check_choice, check_tools
from foredraft.server.tools.detect import spoken_dialect, text_arguments, tools_in_message
from foredraft.server.tools.dialect import ControlTokens, Dialect, Forced
from foredraft.server.tools.harmony import HARMONY, START
from foredraft.server.tools.history import plain_messages, template_messages
from foredraft.server.tools.offered import offered_grammar
from foredraft.server.tools.prompt import with_tools
from foredraft.types import Constraint, Message, ModelInfo, Thinking


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools that a request may call, and the dialect its model uses for calls. `head`: what the prompt
    has of the answer's structure, before the text that it goes on from. `thinking`: how the answer thinks
    first, once its prompt is known. `plain`: a constraint leaves no room for structure in the answer.
    """

    tokenizer: Tokenizer
    dialect: Dialect
    tools: tuple[Tool, ...]
    choice: ToolChoice
    forced: Forced | None = None
    markers: Mapping[int, str] = field(default_factory=dict)
    head: str = ""
    thinking: Thinking | None = None
    plain: bool = False

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

    def encode(
        self, messages: Sequence[Message], wishes: Wishes | None = None, vision: Vision | None = None
    ) -> tuple[ToolUse, EncodedPrompt]:
        """The same tools for the answer, and the prompt of a model with `vision`. Raises RequestError if the
        model's template rejects it or cannot honour `wishes`.
        """
        given, variables = self._for_template(messages, wishes)
        prompt = encode_chat(self.tokenizer, given, variables, vision=vision)
        thinking = thinking_of(self.tokenizer, prompt.tokens)
        if self.forced is not None and (thinking is None or not thinking.begun):
            return self, prompt.then(self._prefix())  # the call is the answer's beginning
        return self._thinking_first(thinking), prompt

    def _thinking_first(self, thinking: Thinking | None) -> ToolUse:
        """These tools for an answer that thinks first. A forced call follows the thought."""
        if thinking is None:
            return self
        if self.forced is not None:
            thinking = replace(thinking, ending=thinking.ending + self.forced.prefix)
        if self.dialect.always_read:
            if self.offered:  # the answer may be a call, too
                role = f"{START}assistant" if self.dialect is HARMONY else ""
                thinking = replace(thinking, ending=thinking.closing + role)
            return replace(self, thinking=thinking, head=thinking.opening if thinking.begun else "")
        marks = control_markers(self.tokenizer, (thinking.opening, thinking.closing))
        return replace(self, thinking=thinking, markers={**self.markers, **marks})

    def encode_continued(
        self, messages: Sequence[Message], wishes: Wishes | None = None, vision: Vision | None = None
    ) -> tuple[ToolUse, EncodedPrompt]:
        """The prompt for an answer that goes on from the last message, and the same tools for that answer.

        Raises what `encode` and `engine.continued.encode_continued` raise.
        """
        given, variables = self._for_template(messages, wishes)
        with_head = self.dialect.always_read
        begun = encode_continued(self.tokenizer, given, variables, with_head=with_head, vision=vision)
        use, prompt = replace(self, head=begun.head), EncodedPrompt(begun.tokens, begun.images)
        if begun.thinking is None:
            return use, prompt.then(self._prefix())
        return replace(use._thinking_first(begun.thinking), head=begun.head), prompt

    def _prefix(self) -> list[int]:
        prefix = "" if self.forced is None else self.forced.prefix
        return self.tokenizer.encode(prefix, special=True) if prefix else []

    def _for_template(
        self, messages: Sequence[Message], wishes: Wishes | None
    ) -> tuple[MarkedMessages, dict[str, Any]]:
        """The messages with their images marked, and the template's variables."""
        marked = mark_images(messages, [tool.as_message() for tool in self.offered])
        tokenizer, offered, given = self.tokenizer, self.offered, normalised(marked.messages)
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
        return MarkedMessages(list(given), marked.images), variables

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

    def under(self, constraint: Constraint | None) -> ToolUse:
        """The same tools for an answer with this constraint."""
        return replace(self, plain=constraint is not None and not self.offered)

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

    def reader(self, origins: Origins | None = None) -> AnswerReader | None:
        """A reader for one answer; None if it has no calls, no thought and no structure. It keeps `origins`,
        if they are wanted.
        """
        parser = answer_parser(self.dialect, self.offered, self.thinking, plain=self.plain)
        if parser is None:
            return None
        forced = self.forced is not None
        reader = AnswerReader(parser, self.markers, self.tokenizer, forced=forced, origins=origins)
        if self.head and not self.plain:
            reader.skip(self.head)
        if self.forced is not None and self.forced.prefix and self.thinking is None:
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
    markers = control_markers(tokenizer, dialect.markers)
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
