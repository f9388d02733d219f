"""What a caller may give as a prompt or a prediction, brought into one form: token ids, and the images among
them.

Text, token ids, and messages of a chat, which are fitted to the model's chat template first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypeGuard

import numpy as np

from foredraft.engine.chat_images import MarkedMessages, as_parts, encode_with_images, mark_images
from foredraft.errors import ContextLengthError, RequestError
from foredraft.images import EncodedPrompt
from foredraft.protocols import Tokenizer, Vision
from foredraft.templates.shield import Shield
from foredraft.templates.thoughts import ThoughtForm
from foredraft.templates.traits import TemplateTraits
from foredraft.types import Message, ModelInfo

Prompt: TypeAlias = str | Sequence[int] | Sequence[Message] | EncodedPrompt
"""Text, token ids, chat messages (which go through the model's chat template), or what those were encoded
to.
"""

MAX_TOKEN_CHARACTERS = 128
"""The longest token in use is 128 spaces: no text has more characters for each of its tokens."""

TEXT_PARTS = ("text", "input_text", "output_text")
"""Types of OpenAI's content parts that hold text: of chat completions, and of responses."""

_PROMPT_HINT = (
    'A prompt is text, a list of token ids, or messages such as [{"role": "user", "content": "…"}].'
)
_MESSAGE_HINT = 'A message is {"role": "user", "content": "…"}, as in OpenAI\'s API.'
_PREDICTION_HINT = 'A prediction is text, a list of token ids, or {"type": "content", "content": "…"}.'


# --- prompts -------------------------------------------------------------------------------------------


def encode_prompt(tokenizer: Tokenizer, prompt: object, vision: Vision | None = None) -> EncodedPrompt:
    """The token ids of a `Prompt`. Raises RequestError for anything that is not one."""
    if isinstance(prompt, EncodedPrompt):
        return prompt
    if isinstance(prompt, str):
        return EncodedPrompt(tokenizer.encode(prompt, special=True, add_bos=True))
    parts = _items("The prompt", prompt, _PROMPT_HINT)
    if _are_plain(parts):
        return EncodedPrompt(parts)
    if all(_is_whole(part) for part in parts):
        return EncodedPrompt([int(part) for part in parts])
    if not all(isinstance(part, Mapping) for part in parts):
        odd = [part for part in parts if not isinstance(part, Mapping) and not _is_whole(part)]
        what = f"is a list with {kind_of(odd[0])} in it" if odd else "mixes token ids and messages"
        raise RequestError(f"The prompt {what}.", hint=_PROMPT_HINT)
    return encode_chat(tokenizer, parts, vision=vision)


def encode_chat(
    tokenizer: Tokenizer,
    messages: Sequence[Message] | MarkedMessages,
    variables: Mapping[str, object] | None = None,
    *,
    vision: Vision | None = None,
) -> EncodedPrompt:
    """The token ids of a conversation, up to where the answer begins. `variables` are the template's, such as
    `tools`. Control tokens are those that the template writes: what messages and variables spell stays text.
    Messages whose images were marked before (`mark_images`) may have been changed since, but for the marks.

    Raises RequestError for a message without a role or text, for what the model's template rejects, and for
    images that the model (`vision`) cannot see.
    """
    marked = messages if isinstance(messages, MarkedMessages) else mark_images(messages, variables)
    fitting = fitted(normalised(marked.messages), tokenizer.template_traits)
    marked = MarkedMessages(list(fitting), marked.images)
    if vision is not None and vision.marker:
        fitting = as_parts(fitting, marked.images)
    shield = Shield(tokenizer.control_texts, fitting, variables or {})
    rendered = tokenizer.apply_chat_template(shield.messages, add_generation_prompt=True, **shield.variables)
    text, literal = shield.restored(rendered)
    return encode_with_images(tokenizer, text, literal, marked, vision)


def encode_infill(tokenizer: Tokenizer, before: str, after: str) -> list[int]:
    """The token ids of a prompt whose answer belongs between two texts: before, after, then the gap, each
    behind its control token (Bavarian et al. 2022, arXiv 2207.14255, "PSM").

    Raises RequestError for a model that was not trained for it.
    """
    if tokenizer.infill_tokens is None:
        raise RequestError(
            "This model was not trained to fill gaps: its vocabulary has no tokens for it.",
            hint="Use a code model that was, or leave the suffix out.",
        )
    first, second, third = tokenizer.infill_tokens
    tokens = [first, *tokenizer.encode(before), second, *tokenizer.encode(after), third]
    begin = tokenizer.encode("", special=True, add_bos=True)
    return begin + tokens


def check_size(what: str, value: object, info: ModelInfo) -> None:
    """Raises ContextLengthError for texts, in lists and mappings of any depth, that no context of this length
    can hold. This is checked before they are encoded: a megabyte of spaces takes four seconds.
    """
    size, most = 0, MAX_TOKEN_CHARACTERS * info.context_length
    left = [value]
    while left:
        part = left.pop()
        if isinstance(part, str):
            size += len(part)
        elif isinstance(part, Mapping):
            left += (*part, *part.values())
        elif isinstance(part, list | tuple):
            left += part
    if size > most:
        raise ContextLengthError(
            f"{what} has {size} characters; a context of {info.context_length} tokens holds {most} at most.",
            hint=_too_long_hint(info),
        )


def check_tokens(tokens: Sequence[int], info: ModelInfo) -> None:
    """Raises RequestError for an impossible prompt, ContextLengthError for one that leaves no room."""
    if not tokens:
        raise RequestError("The prompt is empty.", hint="Give at least one token of text.")
    _check_vocabulary("The prompt", tokens, info.vocab_size)
    if len(tokens) >= info.context_length:
        raise ContextLengthError(
            f"The prompt has {len(tokens)} tokens; the context holds {info.context_length}, answer included.",
            hint=_too_long_hint(info),
        )


def _may_be_longer(info: ModelInfo) -> bool:
    """Whether the model can be loaded with a larger context; true if its training is unknown."""
    return not 0 < info.trained_context <= info.context_length


def longer_by(info: ModelInfo) -> str:
    """The flags that load the model with a larger context; "" if it cannot have one."""
    if _may_be_longer(info):
        return "--ctx N"
    return "--ctx N --rope-scaling yarn" if info.scalable else ""


def _too_long_hint(info: ModelInfo) -> str:
    if _may_be_longer(info):
        trained = f": it was trained for {info.trained_context} tokens" if info.trained_context else ""
        return (
            f"Shorten the prompt, or load the model with a larger context (--ctx, context_length){trained}."
        )
    if flags := longer_by(info):
        return (
            "Shorten the prompt, or load the model with a larger context than it was trained for, by YaRN: "
            f"{flags} (context_length, rope_scaling)."
        )
    return "Shorten the prompt: the model was not trained for a larger context."


# --- messages of a chat --------------------------------------------------------------------------------


def normalised(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Copies of the messages, each with a role and its content as one string.

    Raises RequestError for a message without a role or text.
    """
    return [_normalised(message) for message in messages]


def _normalised(message: Message) -> dict[str, Any]:
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise RequestError("A message has no role.", hint=_MESSAGE_HINT)
    content = message.get("content")
    if content is None or (isinstance(content, list | tuple) and not content):
        if role != "tool" and not (role == "assistant" and _says_something(message)):
            raise RequestError(
                f"The {role} message has no content.",
                hint='Only an assistant message with tool_calls may go without; empty text is "".',
            )
        return {**message, "content": ""}
    return {**message, "content": text_of(f"The {role} message", content, _MESSAGE_HINT)}


def _says_something(message: Message) -> bool:
    """Whether an assistant's message without content calls tools, or was cut off in its thought."""
    return bool(message.get("tool_calls") or message.get("reasoning_content"))


def text_of(what: str, content: object, hint: str) -> str:
    """The text of OpenAI's content: a string, or a list of parts, a line each (as llama.cpp joins them).

    Raises RequestError for `what` has other content.
    """
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise RequestError(f"{what} has {kind_of(content)} as its content, not text.", hint=hint)
    return "\n".join(_part_text(what, part) for part in content)


def _part_text(what: str, part: object) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(part, Mapping) or not isinstance(kind, str):
        raise RequestError(
            f"{what} has a content part without a type.",
            hint='A content part is {"type": "text", "text": "…"}.',
        )
    if kind not in TEXT_PARTS:
        raise RequestError(
            f"{what} has a content part of type {kind!r}; this engine reads text only.",
            hint='Leave it out, or say it in words: {"type": "text", "text": "…"}.',
        )
    text = part.get("text")
    if not isinstance(text, str):
        raise RequestError(
            f"{what} has a content part of type {kind!r} without text.",
            hint='A content part is {"type": "text", "text": "…"}.',
        )
    return text


def fitted(messages: Sequence[Mapping[str, Any]], traits: TemplateTraits) -> list[dict[str, Any]]:
    """Normalised messages as a template with these traits takes them, with nothing left out.

    A system message that the template has no place for is put before the user's next message. Adjacent
    messages of one role are joined where the template wants user and assistant to alternate.
    """
    given = system_placed(messages, traits)
    if traits.alternates:
        given = _alternating(given)
    if traits.typed:
        given = [{**message, "content": [_as_part(message["content"])]} for message in given]
    return [_with_thought(message, traits.thought) for message in given]


def _with_thought(message: dict[str, Any], form: ThoughtForm | None) -> dict[str, Any]:
    """The message with its thought where the template looks for it."""
    thought, content = message.get("reasoning_content"), message["content"]
    if form is None or not thought or message["role"] != "assistant":
        return message
    match form.place:
        case "part":
            parts = [_as_part(content)] if isinstance(content, str) else content
            return {**message, "content": [{"type": "thinking", "thinking": thought}, *parts]}
        case "content" if isinstance(content, str):
            return {**message, "content": f"{form.before}{thought}{form.after}{content}"}
        case "thinking" if content and "tool_calls" in message:
            return message  # gpt-oss's template refuses both beside calls
        case "thinking" | "reasoning" as name:
            return {**message, name: thought}
    return message


def system_placed(messages: Sequence[Mapping[str, Any]], traits: TemplateTraits) -> list[dict[str, Any]]:
    """Normalised messages with system messages only where a template with these traits has a place for
    them; the others are put before the user's next message.
    """
    given: list[dict[str, Any]] = []
    waiting: list[str] = []
    asked = any(message["role"] == "user" for message in messages)  # some put the system message there
    for place, message in enumerate(messages):
        fits = traits.system == "anywhere" or (traits.system == "first" and place == 0 and asked)
        if message["role"] == "system" and not fits:
            waiting.append(message["content"])
        elif message["role"] == "user" and waiting:
            given.append({**message, "content": "\n\n".join([*waiting, message["content"]])})
            waiting = []
        else:
            given.append(dict(message))
    return [*given, {"role": "user", "content": "\n\n".join(waiting)}] if waiting else given


def _alternating(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    turns: list[dict[str, Any]] = []
    for message in messages:
        last = turns[-1] if turns else {}
        role = message["role"]
        # Such a template with tools wants an assistant's message between a tool's result and the user's.
        follows = role == last.get("role") != "tool" or (role == "user" and last.get("role") == "tool")
        if not follows:
            turns.append(message)
            continue
        last["content"] = "\n".join(filter(None, (last["content"], message["content"])))
        if "tool_calls" in message:
            last["tool_calls"] = [*last.get("tool_calls", ()), *message["tool_calls"]]
    return turns


def _as_part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


# --- predictions ---------------------------------------------------------------------------------------


def encode_prediction(tokenizer: Tokenizer, prediction: object, info: ModelInfo) -> tuple[int, ...]:
    """The token ids of a prediction: text, token ids, or OpenAI's `prediction` object. Empty: none.

    Raises RequestError for anything else, and for token ids outside the vocabulary; ContextLengthError for a
    prediction that is longer than any answer.
    """
    if isinstance(prediction, Mapping):
        prediction = _prediction_text(prediction)
    if isinstance(prediction, str):
        check_size("The prediction", prediction, info)
        tokens = tuple(tokenizer.encode(prediction)) if prediction else ()
    else:
        parts = _items("The prediction", prediction, _PREDICTION_HINT)
        odd = [] if _are_plain(parts) else [part for part in parts if not _is_whole(part)]
        if odd:
            raise RequestError(
                f"The prediction is a list with {kind_of(odd[0])} in it.", hint=_PREDICTION_HINT
            )
        tokens = tuple(map(int, parts))
        _check_vocabulary("The prediction", tokens, info.vocab_size)
    if len(tokens) > info.context_length:
        raise ContextLengthError(
            f"The prediction has {len(tokens)} tokens; the context holds {info.context_length}, so no answer "
            "can be as long.",
            hint="Send the part of it that the answer will be.",
        )
    return tokens


def _prediction_text(prediction: Mapping[Any, object]) -> str:
    kind = prediction.get("type")
    if kind != "content":
        raise RequestError(f"The prediction has the type {kind!r}, not 'content'.", hint=_PREDICTION_HINT)
    return text_of("The prediction", prediction.get("content"), _PREDICTION_HINT)


# --- both ----------------------------------------------------------------------------------------------


def kind_of(value: object) -> str:
    """A value in an error message: None, or its type with an article."""
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _items(what: str, value: object, hint: str) -> list[Any]:
    """The items of a list, tuple, other sequence or one-dimensional array. Raises RequestError."""
    if isinstance(value, bytes | bytearray | memoryview):
        raise RequestError(
            f"{what} is {kind_of(value)}, not text.", hint="Decode it first: data.decode('utf-8')."
        )
    if isinstance(value, Mapping):
        raise RequestError(f"{what} is a single {type(value).__name__}.", hint=hint)
    if isinstance(value, np.ndarray) and value.ndim == 1:
        return list(value)
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise RequestError(f"{what} is {kind_of(value)}.", hint=hint)
    return list(value)


def _are_plain(parts: Sequence[object]) -> TypeGuard[list[int]]:
    """Whether all are Python's own integers: a hundred thousand are checked in a millisecond."""
    return set(map(type, parts)) == {int}


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _check_vocabulary(what: str, tokens: Sequence[int], vocab_size: int) -> None:
    if tokens and (min(tokens) < 0 or max(tokens) >= vocab_size):
        raise RequestError(
            f"{what} has a token id outside the vocabulary (0 to {vocab_size - 1}).",
            hint="Encode the text with this model's own tokenizer, or give the text itself.",
        )
