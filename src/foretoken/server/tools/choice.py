"""The `tools` and `tool_choice` of a request, checked: nothing unknown, nothing accepted and ignored."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from foretoken.errors import RequestError

MAX_TOOLS: Final = 128
"""As in OpenAI's API."""

MAX_SCHEMA_DEPTH: Final = 64
"""Levels of nesting in a parameter schema: far beyond any real one, well within Python's recursion limit."""

_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NO_PARAMETERS: Final[Mapping[str, Any]] = {"type": "object", "properties": {}}
_TOOL_KEYS: Final = frozenset({"type", "function"})
_FUNCTION_KEYS: Final = frozenset({"name", "description", "parameters", "strict"})
_CHOICES: Final = '\'auto\', \'none\', \'required\' or {"type": "function", "function": {"name": …}}'


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call. `parameters` is a JSON schema of type object."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: dict(_NO_PARAMETERS))
    strict: bool = False

    def as_message(self) -> dict[str, Any]:
        """The tool as chat templates expect it: OpenAI's own form, without what is not for the model."""
        function: dict[str, Any] = {"name": self.name}
        if self.description:
            function["description"] = self.description
        return {"type": "function", "function": {**function, "parameters": dict(self.parameters)}}


Mode: TypeAlias = Literal["none", "auto", "required", "function"]


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Whether the model may (auto), must (required, function) or must not (none) call.

    `name` is the function to call where `mode` is "function". `parallel`: more than one call is allowed
    (a named function is always called once).
    """

    mode: Mode = "auto"
    name: str | None = None
    parallel: bool = True

    @property
    def forced(self) -> bool:
        """Whether the answer has to be a call."""
        return self.mode in ("required", "function")

    @property
    def once(self) -> bool:
        """Whether a forced answer is exactly one call."""
        return self.mode == "function" or not self.parallel

    def callable(self, tools: Sequence[Tool]) -> tuple[Tool, ...]:
        """The tools that this choice lets the model call."""
        if self.mode == "none":
            return ()
        return tuple(tool for tool in tools if self.mode != "function" or tool.name == self.name)


def check_tools(tools: object) -> tuple[Tool, ...]:
    """The request's `tools` (None: none). Raises RequestError that says which one is wrong, and how."""
    if tools is None:
        return ()
    if not isinstance(tools, Sequence) or isinstance(tools, str | bytes):
        raise RequestError("'tools' is not a list.", hint="Send a list of function tools, or leave it out.")
    if len(tools) > MAX_TOOLS:
        raise RequestError(f"There are {len(tools)} tools; at most {MAX_TOOLS} are allowed.")
    checked = tuple(_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools))
    seen: set[str] = set()
    for index, tool in enumerate(checked):
        if tool.name in seen:
            raise RequestError(
                f"tools[{index}].function.name: there are two functions named {tool.name!r}.",
                hint="Give every function its own name.",
            )
        seen.add(tool.name)
    return checked


def check_choice(choice: object, tools: Sequence[Tool], *, parallel: bool = True) -> ToolChoice:
    """The request's `tool_choice` (None: auto where there are tools). Raises RequestError."""
    if choice is None or choice in ("auto", "none"):
        return ToolChoice("auto" if tools and choice != "none" else "none", parallel=parallel)
    if choice == "required":
        _needs_tools(tools)
        return ToolChoice("required", parallel=parallel)
    if not isinstance(choice, Mapping):
        raise RequestError(f"'tool_choice' is {_shown(choice)}.", hint=f"It can be {_CHOICES}.")
    name = _named(choice)
    _needs_tools(tools)
    if name not in {tool.name for tool in tools}:
        raise RequestError(
            f"'tool_choice' names the function {name!r}, which is not among the tools.",
            hint=f"The functions are: {', '.join(tool.name for tool in tools)}.",
        )
    return ToolChoice("function", name, parallel)


def _named(choice: Mapping[Any, Any]) -> str:
    function = choice.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    exact = set(choice) == _TOOL_KEYS and isinstance(function, Mapping) and set(function) == {"name"}
    if choice.get("type") != "function" or not exact or not isinstance(name, str):
        raise RequestError(
            "'tool_choice' is an object that does not name a function.", hint=f"It can be {_CHOICES}."
        )
    return name


def _needs_tools(tools: Sequence[Tool]) -> None:
    if not tools:
        raise RequestError(
            "'tool_choice' asks for a call, but there are no tools.",
            hint="Send 'tools' too, or leave 'tool_choice' out.",
        )


def _tool(tool: object, where: str) -> Tool:
    if not isinstance(tool, Mapping):
        raise RequestError(f"{where} is not an object.")
    if tool.get("type") != "function":
        raise RequestError(
            f"{where}.type is {_shown(tool.get('type'))}; only 'function' is supported.",
            hint="Built-in and custom tools of other services do not exist here.",
        )
    _only(tool, _TOOL_KEYS, where)
    function = tool.get("function")
    if not isinstance(function, Mapping):
        raise RequestError(f"{where}.function is missing or not an object.")
    where = f"{where}.function"
    _only(function, _FUNCTION_KEYS, where)
    description, strict = function.get("description"), function.get("strict")
    if description is not None and not isinstance(description, str):
        raise RequestError(f"{where}.description is not text.")
    if strict is not None and not isinstance(strict, bool):
        raise RequestError(f"{where}.strict is neither true nor false.")
    return Tool(
        name=_name(function.get("name"), f"{where}.name"),
        description=description or "",
        parameters=_parameters(function.get("parameters"), f"{where}.parameters"),
        strict=bool(strict),
    )


def _only(value: Mapping[Any, Any], known: frozenset[str], where: str) -> None:
    unknown = sorted(str(key) for key in value if key not in known)
    if unknown:
        raise RequestError(
            f"{where} has an unknown field {unknown[0]!r}.", hint=f"Known are: {', '.join(sorted(known))}."
        )


def _name(name: object, where: str) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise RequestError(
            f"{where} is {_shown(name)}.",
            hint="A function's name has 1 to 64 characters out of a-z, A-Z, 0-9, '_' and '-'.",
        )
    return name


def _parameters(parameters: object, where: str) -> Mapping[str, Any]:
    if parameters is None:
        return dict(_NO_PARAMETERS)
    if not isinstance(parameters, Mapping) or parameters.get("type") != "object":
        raise RequestError(
            f"{where} is not a JSON schema of type object.",
            hint='The arguments are an object: {"type": "object", "properties": {…}}.',
        )
    if not isinstance(parameters.get("properties", {}), Mapping):
        raise RequestError(f"{where}.properties is not an object.")
    _check_depth(parameters, where)
    return dict(parameters)


def _check_depth(schema: object, where: str) -> None:
    level = [schema]
    for _ in range(MAX_SCHEMA_DEPTH):
        level = [child for value in level for child in _children(value)]
        if not level:
            return
    raise RequestError(f"{where} is nested more than {MAX_SCHEMA_DEPTH} levels deep.")


def _children(value: object) -> list[object]:
    if isinstance(value, Mapping):
        return list(value.values())
    return list(value) if isinstance(value, list | tuple) else []


def _shown(value: object) -> str:
    """A value in an error message, cut to a reasonable length."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
