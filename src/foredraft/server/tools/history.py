"""Earlier calls and their results, converted from OpenAI's messages for chat templates.

OpenAI's messages have a call's arguments as JSON text; templates need the object (most would write text
quoted and escaped, a form not seen in training). They also test for the key `tool_calls`, not its value. All
messages here are already `normalised`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from foredraft.errors import RequestError
from foredraft.server.tools.arguments import read_arguments
from foredraft.server.tools.choice import Tool
from foredraft.server.tools.dialect import Dialect
from foredraft.server.tools.prompt import call_text, result_text, tools_prompt
from foredraft.types import Message


def template_messages(
    messages: Sequence[Message], dialect: Dialect, *, text_arguments: bool = False
) -> list[dict[str, Any]]:
    """The messages for a template that supports tools; `text_arguments`: it prints a call's arguments
    unchanged. Raises RequestError.
    """
    prepared: list[dict[str, Any]] = []
    for message in _checked(messages):
        if message.get("role") == "tool":
            message["tool_call_id"] = dialect.template_id(message["tool_call_id"])
        for call in message.get("tool_calls", ()):
            call["id"] = dialect.template_id(call["id"])
            if text_arguments:
                call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
        prepared.append(message)
    return _one_call_a_message(prepared) if dialect.one_call_a_message else prepared


def plain_messages(messages: Sequence[Message], tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """The messages for a template without tool support: calls and results become text. Raises RequestError.

    Results become part of a user message, together with the user's next text, since such templates often
    require alternating roles.
    """
    plain: list[dict[str, Any]] = []
    results: list[str] = []
    for message in _checked(messages):
        if message.get("role") == "tool":
            results.append(result_text(message["content"]))
            continue
        calls = message.pop("tool_calls", ())
        if calls:
            written = [call_text(call["function"]["name"], call["function"]["arguments"]) for call in calls]
            message["content"] = "\n".join([*filter(None, [message["content"]]), *written])
        if results and message.get("role") == "user":
            message["content"] = "\n".join([*results, message["content"]])
        elif results:
            plain.append({"role": "user", "content": "\n".join(results)})
        results.clear()
        plain.append(message)
    if results:
        plain.append({"role": "user", "content": "\n".join(results)})
    return _with_system(plain, tools_prompt(tools)) if tools else plain


def _with_system(messages: list[dict[str, Any]], addition: str) -> list[dict[str, Any]]:
    first = messages[0] if messages else {}
    if first.get("role") not in ("system", "developer"):
        return [{"role": "system", "content": addition}, *messages]
    own = first["content"]
    return [{**first, "content": f"{own}\n\n{addition}" if own else addition}, *messages[1:]]


def _one_call_a_message(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put each call into its own message, followed by its result."""
    apart: list[dict[str, Any]] = []
    answered: set[int] = set()
    for at, message in enumerate(messages):
        calls = message.get("tool_calls", ())
        if at in answered:
            continue
        if len(calls) < 2:
            apart.append(message)
            continue
        results = _results_after(messages, at)
        for call in calls:
            apart.append({**message, "tool_calls": [call]})
            found = [place for place in results if messages[place]["tool_call_id"] == call["id"]]
            apart += [messages[place] for place in found]
            answered.update(found)
    return apart


def _results_after(messages: Sequence[Mapping[str, Any]], at: int) -> list[int]:
    places: list[int] = []
    for place in range(at + 1, len(messages)):
        if messages[place].get("role") != "tool":
            break
        places.append(place)
    return places


# --- checks --------------------------------------------------------------------------------------------


def _checked(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Copies of the messages with arguments as objects, and results named by their function."""
    names: dict[str, str] = {}
    checked: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        copy = dict(message)
        if copy.get("role") == "tool":
            copy = _result(copy, names, f"messages[{index}]")
        elif "tool_calls" in copy:
            calls = copy.pop("tool_calls") or ()
            if calls:
                copy["tool_calls"] = _calls(calls, names, f"messages[{index}].tool_calls")
        checked.append(copy)
    return checked


def _result(message: dict[str, Any], names: Mapping[str, str], where: str) -> dict[str, Any]:
    call_id = message.get("tool_call_id")
    if not isinstance(call_id, str) or call_id not in names:
        raise RequestError(
            f"{where}.tool_call_id is {call_id!r}, but no earlier message has this call.",
            hint="A message with role 'tool' must follow the assistant message with its call.",
        )
    return {**message, "name": message.get("name") or names[call_id]}


def _calls(calls: object, names: dict[str, str], where: str) -> list[dict[str, Any]]:
    if not isinstance(calls, Sequence) or isinstance(calls, str | bytes):
        raise RequestError(f"{where} is not a list.")
    return [_call(call, names, f"{where}[{index}]") for index, call in enumerate(calls)]


def _call(call: object, names: dict[str, str], where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping):
        raise RequestError(f"{where} is not a function call.")
    call_id, name = call.get("id"), function.get("name")
    if not isinstance(call_id, str) or not isinstance(name, str):
        raise RequestError(f"{where} has no id or no function name.")
    names[call_id] = name
    arguments = _arguments(function.get("arguments"), f"{where}.function.arguments")
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _arguments(arguments: object, where: str) -> dict[str, Any]:
    if isinstance(arguments, Mapping):
        return dict(arguments)
    if arguments is None:
        return {}
    value = read_arguments(arguments) if isinstance(arguments, str) else None
    if value is None:
        raise RequestError(
            f"{where} is not a JSON object.",
            hint="Send the arguments as JSON text, as they were in the answer.",
        )
    return value
