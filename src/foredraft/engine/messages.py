"""Messages of a chat, brought into one form before anything looks at them, and fitted to a chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from foredraft.errors import RequestError
from foredraft.templates.traits import TemplateTraits
from foredraft.types import Message

TEXT_PARTS = ("text", "input_text", "output_text")
"""Types of OpenAI's content parts that hold text: of chat completions, and of responses."""

_HINT = 'A message is {"role": "user", "content": "…"}, as in OpenAI\'s API.'


# --- one form ------------------------------------------------------------------------------------------


def normalised(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Copies of the messages, each with a role and its content as one string.

    Raises RequestError for a message without a role or text.
    """
    return [_normalised(message) for message in messages]


def _normalised(message: Message) -> dict[str, Any]:
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise RequestError("A message has no role.", hint=_HINT)
    content = message.get("content")
    if content is None or (isinstance(content, list | tuple) and not content):
        if role != "tool" and (role != "assistant" or not message.get("tool_calls")):
            raise RequestError(
                f"The {role} message has no content.",
                hint='Only an assistant message with tool_calls may go without; empty text is "".',
            )
        return {**message, "content": ""}
    return {**message, "content": text_of(f"The {role} message", content, _HINT)}


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


def kind_of(value: object) -> str:
    """A value in an error message: None, or its type with an article."""
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


# --- fitted to a template ------------------------------------------------------------------------------


def fitted(messages: Sequence[Mapping[str, Any]], traits: TemplateTraits) -> list[dict[str, Any]]:
    """Messages in one form as a template with these traits takes them, with nothing left out.

    What the system says stands before the next words of the user where the template has no other place for
    it. Neighbours of one role are one message where the template wants user and assistant to take turns.
    """
    given = _with_system_told(messages, traits)
    if traits.alternates:
        given = _taking_turns(given)
    if traits.typed:
        given = [{**message, "content": [_as_part(message["content"])]} for message in given]
    return given


def _with_system_told(messages: Sequence[Mapping[str, Any]], traits: TemplateTraits) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = []
    waiting: list[str] = []
    asked = any(message["role"] == "user" for message in messages)  # some write the system's words into those
    for place, message in enumerate(messages):
        fits = traits.system == "anywhere" or (traits.system == "first" and place == 0 and asked)
        if message["role"] == "system" and not fits:
            waiting.append(message["content"])
        elif message["role"] == "user" and waiting:
            told.append({**message, "content": "\n\n".join([*waiting, message["content"]])})
            waiting = []
        else:
            told.append(dict(message))
    return [*told, {"role": "user", "content": "\n\n".join(waiting)}] if waiting else told


def _taking_turns(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    turns: list[dict[str, Any]] = []
    for message in messages:
        last = turns[-1] if turns else {}
        role = message["role"]
        # Such a template that knows tools wants the assistant's answer between a result and the user's words.
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
