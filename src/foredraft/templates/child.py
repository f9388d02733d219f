"""Renders chat templates as transformers does. Imported in child processes only: a template is a program
from the model file.

The environment is transformers': a sandbox without methods that modify values, blocks that leave no blank
lines, loop controls, `generation` blocks, `raise_exception`, `strftime_now`, and a `tojson` without HTML
escapes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

import jinja2
import jinja2.meta
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from foredraft.errors import RequestError
from foredraft.templates.thoughts import HARMONY, Place, ThoughtForm, marks_of, usual_form
from foredraft.templates.traits import SWITCHES

OUTPUT_FACTOR = 16
OUTPUT_CHARACTERS = 1 << 20
"""Maximum characters of a rendered prompt: this constant plus a multiple of its input's characters."""

_LITERAL_CHARACTERS = 32
_THOUGHTS = re.compile(r"</?\|?(?:seed:)?think|\[/?THINK|<\|channel\|?>|reasoning_content|\.thinking")
_SWITCHES = dict.fromkeys(SWITCHES, True)


def render(source: str, variables: Mapping[str, Any]) -> str:
    """Render a template. Raises RequestError for any error in it."""
    try:
        return _rendered(source, variables)
    except (RequestError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - a template is a program, and may fail in any way
        raise RequestError(f"The model's chat template rejects these messages: {_told(error)}") from None


def examine(source: str, tokens: Mapping[str, str]) -> dict[str, Any]:
    """The fields of `TemplateTraits` for a template, as plain values. `tokens`: bos_token and similar."""
    try:
        tree = _environment().parse(source)
        texts = {node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)}
        # This also evaluates constant expressions and stores the results in the tree.
        read = jinja2.meta.find_undeclared_variables(tree) - _environment().globals.keys()
        _compiled(source)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - the compiler may fail in any way, too
        return {"error": f"It cannot be compiled: {_told(error)}"}
    return {
        "variables": set(read),
        "literals": {text for text in texts if len(text) <= _LITERAL_CHARACTERS},
        "thinks": bool(_THOUGHTS.search(source)) or marks_of(source) is not None,
        "thought": None if (form := _thought(source, tokens)) is None else asdict(form),
        **_tried(source, tokens),
    }


# --- the environment -----------------------------------------------------------------------------------


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's text for training; here it is ordinary
    text.
    """

    tags = {"generation"}  # noqa: RUF012 - Jinja's own declaration

    def parse(self, parser: Parser) -> nodes.Node:
        """Parse it as a scope: variables set inside stay inside, as in transformers."""
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _strftime_now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


@lru_cache(maxsize=16)
def _compiled(source: str) -> jinja2.Template:
    return _environment().from_string(source)


def _rendered(source: str, variables: Mapping[str, Any]) -> str:
    most = OUTPUT_CHARACTERS + OUTPUT_FACTOR * _size(variables)
    pieces: list[str] = []
    length = 0
    for piece in _compiled(source).generate(**variables):
        length += len(piece)
        if length > most:
            raise RequestError(
                f"The model's chat template produces more than {most} characters from these messages."
            )
        pieces.append(piece)
    return "".join(pieces)


def _size(value: Any) -> int:
    """Total characters of all texts in a value."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(_size(key) + _size(item) for key, item in value.items())
    return sum(map(_size, value)) if isinstance(value, list | tuple) else 1


def _told(error: Exception) -> str:
    """An error's message, with the line of a syntax error."""
    said = str(error) or type(error).__name__
    return f"line {error.lineno}: {said}" if isinstance(error, jinja2.TemplateSyntaxError) else said


# --- trying a template ---------------------------------------------------------------------------------

_USER, _MORE, _ANSWER, _SYSTEM, _LATER = "a7Question", "b7Question", "c7Answer", "d7System", "e7System"


def _tried(source: str, tokens: Mapping[str, str]) -> dict[str, Any]:
    """Traits found by rendering short conversations."""

    def takes(*said: tuple[str, str], typed: bool = False) -> bool | None:
        """Whether all the given texts are in the rendered text. None: the template rejects the messages."""
        messages = [{"role": role, "content": _content(text, typed=typed)} for role, text in said]
        try:
            written = _rendered(source, _variables(messages, tokens))
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001
            return None
        return all(text in written for _, text in said)

    typed = not takes(("user", _USER)) and bool(takes(("user", _USER), typed=True))
    turns = (("user", _USER), ("assistant", _ANSWER), ("user", _MORE))
    later = (("system", _SYSTEM), *turns[:2], ("system", _LATER), turns[2])
    system = "nowhere"
    if takes(("system", _SYSTEM), turns[0], typed=typed):
        system = "anywhere" if takes(*later, typed=typed) else "first"
    refuses = takes(*turns, typed=typed) is not None and takes(turns[0], turns[2], typed=typed) is None
    return {"system": system, "alternates": refuses, "typed": typed}


def _content(text: str, *, typed: bool) -> str | Sequence[Mapping[str, str]]:
    return [{"type": "text", "text": text}] if typed else text


def _variables(messages: Sequence[Mapping[str, Any]], tokens: Mapping[str, str]) -> dict[str, Any]:
    empty = {"tools": None, "documents": None, "add_generation_prompt": True}
    return {**empty, **tokens, "messages": messages}


# --- how it writes a thought -----------------------------------------------------------------------------

_THOUGHT = "f7Thought"
_CALL = {"id": "call_1", "type": "function", "function": {"name": "g7Call", "arguments": {}}}
_FIELDS: Sequence[Place] = ("reasoning_content", "reasoning", "thinking")


def _thought(source: str, tokens: Mapping[str, str]) -> ThoughtForm | None:
    """The form of thoughts, found by rendering an answer with one."""
    marks = marks_of(source)
    if marks is None:
        return None
    opening, closing = marks
    asked = {"role": "user", "content": _USER}

    def written(messages: Sequence[Mapping[str, Any]], *, begins: bool = False, typed: bool = False) -> str:
        """The conversation; "" if the template rejects it."""
        if typed:
            messages = [{**it, "content": [{"type": "text", "text": it["content"]}]} for it in messages]
        variables = _variables(messages, tokens) | _SWITCHES | {"add_generation_prompt": begins}
        try:
            return _rendered(source, variables)
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001
            return written(messages, begins=begins, typed=True) if not typed and _texts(messages) else ""

    begun = written([asked], begins=True)
    space = begun[len(begun.rstrip()) :] if begun.rstrip().endswith(opening) else None
    form = usual_form(opening, closing, space)
    inline = {"role": "assistant", "content": f"{form.before}{_THOUGHT}{form.after}{_ANSWER}"}
    for place, answer in _answers():
        text = written([asked, answer])
        if _THOUGHT not in text and marks != HARMONY:
            result = {"role": "tool", "name": "g7Call", "tool_call_id": "call_1", "content": _MORE}
            text = written([asked, {**answer, "tool_calls": [_CALL]}, result], begins=True)
        before, after = _around(text, opening, closing)
        if _THOUGHT in text and (place != "part" or (before and after)):
            return ThoughtForm(opening, closing, before or form.before, after or form.after, place)
    later = {"role": "user", "content": _MORE}
    dropped = _ANSWER in (text := written([asked, inline, later])) and _THOUGHT not in text
    if dropped and "reasoning_content" not in source:
        return ThoughtForm(opening, closing, form.before, form.after, "content")
    return form


def _texts(messages: Sequence[Mapping[str, Any]]) -> bool:
    return all(isinstance(message["content"], str) for message in messages)


def _answers() -> Sequence[tuple[Place, Mapping[str, Any]]]:
    """Answers with a thought in each place."""
    said = {"role": "assistant", "content": _ANSWER}
    parts = [{"type": "thinking", "thinking": _THOUGHT}, {"type": "text", "text": _ANSWER}]
    fields: list[tuple[Place, Mapping[str, Any]]] = [(name, {**said, name: _THOUGHT}) for name in _FIELDS]
    return [*fields, ("part", {**said, "content": parts})]


def _around(text: str, opening: str, closing: str) -> tuple[str, str]:
    """What stands before a thought from its mark on, and behind it up to the answer; "" without a mark."""
    begin = text.find(_THOUGHT)
    end = begin + len(_THOUGHT)
    first, last = text.rfind(opening, 0, begin), text.find(_ANSWER, end)
    before = text[first:begin] if first >= 0 else ""
    after = text[end:last] if last >= 0 else ""
    return (before if not before[len(opening) :].strip() else ""), (after if closing in after else "")
