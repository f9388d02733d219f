"""Prompts for an answer whose beginning is the last message of the conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from foredraft.engine.chat_images import MarkedMessages, as_parts, encode_with_images, mark_images
from foredraft.engine.prompt import fitted, normalised, system_placed
from foredraft.errors import RequestError
from foredraft.images import ImageSpan
from foredraft.protocols import Tokenizer, Vision
from foredraft.templates.shield import Shield
from foredraft.templates.thoughts import HARMONY, ThoughtForm
from foredraft.types import Message, Thinking


@dataclass(frozen=True, slots=True)
class Continued:
    """The token ids of a conversation up to the end of its last message's text, and the `images` among them.
    `head`: what stands between the place where the template lets the model begin an answer and that text,
    such as the name of a channel; only where it was asked for. `thinking`: how the answer goes on to think,
    if it ends within a thought.
    """

    tokens: list[int]
    head: str = ""
    thinking: Thinking | None = None
    images: tuple[ImageSpan, ...] = ()


def encode_continued(
    tokenizer: Tokenizer,
    messages: Sequence[Message] | MarkedMessages,
    variables: Mapping[str, object] | None = None,
    *,
    with_head: bool = False,
    vision: Vision | None = None,
) -> Continued:
    """The prompt for an answer that goes on from the text of the last message, which is the assistant's.

    The template writes that message like an earlier one, so that its text stands where answers have it, and
    what follows the text is cut off. Of a model that thinks, a thought (the message's `reasoning_content`, or
    text with the thought's marks in it) and text after a thought that the template has ended is put where the
    template lets the model begin: templates leave thoughts out of earlier messages. A message with a thought
    alone was cut off within it. Where the template lets the model think first, other text is the answer.

    Raises RequestError if the last message is not the assistant's or calls tools, if the template changes its
    text, and what `encode_chat` raises.
    """
    marked = messages if isinstance(messages, MarkedMessages) else mark_images(messages, variables)
    given = normalised(marked.messages)
    last = given[-1] if given else {}
    traits = tokenizer.template_traits
    _check(last, traits.thought)
    thought = last.pop("reasoning_content", None)
    given = [*system_placed(given[:-1], traits), last]  # every system message comes before the answer
    fitting = fitted(given, traits)
    marked = MarkedMessages(list(fitting), marked.images)
    if vision is not None and vision.marker:
        fitting = as_parts(fitting, marked.images)
    if thought:
        fitting[-1]["reasoning_content"] = thought
    shield = Shield(tokenizer.control_texts, fitting, variables or {})
    thought = shield.messages[-1].pop("reasoning_content", "")
    begun = _Begun(tokenizer, shield, thought)
    written, inside = begun.written()
    text, literal = shield.restored(written)
    head = begun.head(written) if with_head else ""
    thinking = None
    if traits.thought is not None and inside:
        form = traits.thought
        thinking = Thinking(form.opening, form.closing, form.after, begun=True, goes_on=True)
    tokens, images = encode_with_images(tokenizer, text, literal, marked, vision)
    return Continued(tokens, head, thinking, images)


def _check(last: Mapping[str, Any], form: ThoughtForm | None) -> None:
    if last.get("role") != "assistant":
        raise RequestError(
            "The last message is not the assistant's, so there is no answer to continue.",
            hint="Send the beginning of the answer as a last message with the role assistant.",
        )
    if last.get("tool_calls"):
        raise RequestError(
            "The last message calls tools, so there is no text to continue.",
            hint="Add the results of the calls.",
        )
    if form is None and not last["content"] and last.get("reasoning_content"):
        raise RequestError(
            "The last message has reasoning but no text, and this model's chat template has no reasoning.",
            hint="Leave the last message out, so that the model answers anew.",
        )


def _text(message: Mapping[str, Any]) -> str:
    content = message["content"]
    return str(content if isinstance(content, str) else content[-1]["text"])


class _Begun:
    """A conversation whose last message is the beginning of the answer; its `thought` stands apart."""

    def __init__(self, tokenizer: Tokenizer, shield: Shield, thought: str) -> None:
        self._tokenizer = tokenizer
        self._shield = shield
        self._thought = thought
        self._form = tokenizer.template_traits.thought
        self._last = shield.messages[-1]
        self._before = shield.messages[:-1]
        self._text = _text(self._last)

    def written(self) -> tuple[str, bool]:
        """The conversation up to the end of the message, and whether that is within a thought.

        Raises RequestError where the template leaves no place for it.
        """
        form = self._form
        if form is None or not self._before:
            return self._up_to_text(), False
        start = self._start()
        opened, closed = start.rstrip().endswith(form.opening), start.rstrip().endswith(form.closing)
        if self._thought:
            if closed:
                raise RequestError(
                    "The last message has reasoning, but this request turns it off.",
                    hint="Leave it out, or let the model reason.",
                )
            thought = ("" if opened else form.before) + self._thought
            return start + thought + (form.after + self._text if self._text else ""), not self._text
        plain, _ = self._shield.restored(self._text)
        marked = form.closing in plain or plain.lstrip().startswith(form.opening)
        if not (closed or (marked and form.opening != HARMONY[0])):
            return self._up_to_text(), False
        text = self._text
        if opened and plain.lstrip().startswith(form.opening):  # the template has opened the thought, too
            text = text[len(text) - len(plain.lstrip()) + len(form.opening) :].lstrip()
        return start + text, not closed and form.closing not in plain

    def _start(self) -> str:
        """The conversation without the last message, up to where the model begins."""
        return self._tokenizer.apply_chat_template(
            self._before, add_generation_prompt=True, **self._shield.variables
        )

    def _up_to_text(self) -> str:
        """The conversation up to the end of its last message's text, which a mark finds: a text alone could
        be elsewhere, too, and white space at its end be trimmed.
        """
        mark, text, content = self._shield.mark(), self._text, self._last["content"]
        marked = text + mark if isinstance(content, str) else [{**content[-1], "text": text + mark}]
        rendered = self._tokenizer.apply_chat_template(
            [*self._before, {**self._last, "content": marked}],
            add_generation_prompt=False,
            **self._shield.variables,
        )
        written, found, rest = rendered.partition(mark)
        kept = written.endswith(text) or (text.strip() and written.endswith(text.lstrip()))
        if not found or mark in rest or not kept:
            raise RequestError(
                "The model's chat template changes the text of the last message, so that it cannot be "
                "continued.",
                hint="Leave the last message out, or put what the answer begins with into the question.",
            )
        return written

    def head(self, written: str) -> str:
        """What is between the model's beginning and the message's text, with its thought."""
        start, text = self._start() if self._before else "", self._text
        if not start or not written.startswith(start):
            return ""
        rest = written[len(start) :]
        return self._shield.restored(rest.removesuffix(text).removesuffix(text.lstrip()))[0]
