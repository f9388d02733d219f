"""Validation of a request's `tools` and `tool_choice`: everything is either understood or refused.

OpenAI's two APIs differ: chat completions have a function's fields in an object of their own, `{"type":
"function", "function": {"name": …}}`; responses have them `flat`, beside the type.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from foredraft.errors import RequestError

MAX_TOOLS: Final = 128
"""OpenAI's limit."""

MAX_SCHEMA_DEPTH: Final = 64
"""Maximum nesting of a parameter schema: more than real ones need, and within Python's recursion limit."""

_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NO_PARAMETERS: Final[Mapping[str, Any]] = {"type": "object", "properties": {}}
_CHOICES: Final = "Use 'auto', 'none', 'required', {} or {}."
_NAMED: Final = '{"type": "function", "function": {"name": …}}'
_ALLOWED: Final = '{"type": "allowed_tools", "allowed_tools": {"mode": …, "tools": […]}}'
_NAMED_FLAT: Final = '{"type": "function", "name": …}'
_ALLOWED_FLAT: Final = '{"type": "allowed_tools", "mode": …, "tools": […]}'


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call. `parameters` is a JSON schema of type object."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: dict(_NO_PARAMETERS))
    strict: bool = False

    def as_message(self) -> dict[str, Any]:
        """The tool for chat templates: OpenAI's form, without fields that the model does not need."""
        function: dict[str, Any] = {"name": self.name}
        if self.description:
            function["description"] = self.description
        return {"type": "function", "function": {**function, "parameters": dict(self.parameters)}}


Mode: TypeAlias = Literal["none", "auto", "required", "function"]


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Whether the model may (auto), must (required, function) or must not (none) call a tool.

    `name`: the function to call if `mode` is "function". `parallel`: several calls are allowed (a named
    function is always called once). `allowed`: the functions to choose from; None: all of them.
    """

    mode: Mode = "auto"
    name: str | None = None
    parallel: bool = True
    allowed: frozenset[str] | None = None

    @property
    def forced(self) -> bool:
        """Whether the answer must be a call."""
        return self.mode in ("required", "function")

    @property
    def once(self) -> bool:
        """Whether an answer with a call has exactly one."""
        return self.mode == "function" or not self.parallel

    def callable(self, tools: Sequence[Tool]) -> tuple[Tool, ...]:
        """The tools that the model may call."""
        if self.mode == "none":
            return ()
        names = frozenset({self.name}) if self.mode == "function" else self.allowed
        return tuple(tool for tool in tools if names is None or tool.name in names)


def check_tools(tools: object, *, flat: bool = False) -> tuple[Tool, ...]:
    """Validate the request's `tools` (None: none). A function is strict if it says so; with `flat`, unless it
    says no.

    Raises RequestError with the tool at fault and the reason.
    """
    if tools is None:
        return ()
    if not isinstance(tools, Sequence) or isinstance(tools, str | bytes):
        raise RequestError("'tools' is not a list.", hint="Send a list of function tools, or leave it out.")
    if len(tools) > MAX_TOOLS:
        raise RequestError(f"There are {len(tools)} tools; at most {MAX_TOOLS} are allowed.")
    checked = tuple(_tool(tool, index, flat=flat) for index, tool in enumerate(tools))
    seen: set[str] = set()
    for index, tool in enumerate(checked):
        if tool.name in seen:
            raise RequestError(
                f"{_where(index, flat=flat)}.name: two functions are named {tool.name!r}.",
                hint="Give every function a different name.",
            )
        seen.add(tool.name)
    return checked


def check_choice(
    choice: object, tools: Sequence[Tool], *, parallel: bool = True, flat: bool = False
) -> ToolChoice:
    """Validate the request's `tool_choice` (None: auto if there are tools). Raises RequestError."""
    if choice is None or choice in ("auto", "none"):
        return ToolChoice("auto" if tools and choice != "none" else "none", parallel=parallel)
    if choice == "required":
        _needs_tools(tools)
        return ToolChoice("required", parallel=parallel)
    forms = (_NAMED_FLAT, _ALLOWED_FLAT) if flat else (_NAMED, _ALLOWED)
    if not isinstance(choice, Mapping):
        raise RequestError(f"'tool_choice' is {_shown(choice)}.", hint=_CHOICES.format(*forms))
    if choice.get("type") == "allowed_tools":
        return _allowed(choice, tools, parallel=parallel, flat=flat)
    name = _named(choice, flat=flat)
    if name is None:
        raise RequestError(
            "'tool_choice' is an object without a function's name.", hint=_CHOICES.format(*forms)
        )
    _needs_tools(tools)
    _check_offered("names", name, tools)
    return ToolChoice("function", name, parallel)


def _allowed(choice: Mapping[Any, Any], tools: Sequence[Tool], *, parallel: bool, flat: bool) -> ToolChoice:
    """A choice among the listed functions; the others are treated as if they were not sent."""
    given = _fields(choice, "allowed_tools", flat=flat)
    mode, listed = given.get("mode"), given.get("tools")
    names = [_named(tool, flat=flat) for tool in listed] if isinstance(listed, list) else []
    if set(given) != {"mode", "tools"} or mode not in ("auto", "required") or not names or None in names:
        raise RequestError(
            "'tool_choice' is of type 'allowed_tools' and does not list functions.",
            hint=f"Use {_ALLOWED_FLAT if flat else _ALLOWED}, with the mode 'auto' or 'required' "
            "and at least one function by its name.",
        )
    _needs_tools(tools)
    for name in names:
        _check_offered("allows", name, tools)
    return ToolChoice(mode, parallel=parallel, allowed=frozenset(name for name in names if name))


def _named(choice: object, *, flat: bool) -> str | None:
    """The function that an object names; None for any other object."""
    if not isinstance(choice, Mapping) or choice.get("type") != "function":
        return None
    fields = _fields(choice, "function", flat=flat)
    name = fields.get("name")
    return name if set(fields) == {"name"} and isinstance(name, str) else None


def _fields(choice: Mapping[Any, Any], key: str, *, flat: bool) -> Mapping[Any, Any]:
    """The fields beside the type: directly in the object, or in one object under `key`."""
    if flat:
        return {name: value for name, value in choice.items() if name != "type"}
    fields = choice.get(key)
    return fields if isinstance(fields, Mapping) and set(choice) == {"type", key} else {}


def _check_offered(what: str, name: str | None, tools: Sequence[Tool]) -> None:
    if name not in {tool.name for tool in tools}:
        raise RequestError(
            f"'tool_choice' {what} the function {name!r}, which is not among the tools.",
            hint=f"Available functions:  {', '.join(tool.name for tool in tools)}.",
        )


def _needs_tools(tools: Sequence[Tool]) -> None:
    if not tools:
        raise RequestError(
            "'tool_choice' requires a call, but there are no tools.",
            hint="Send 'tools' too, or remove 'tool_choice'.",
        )


def _where(index: int, *, flat: bool) -> str:
    return f"tools[{index}]" if flat else f"tools[{index}].function"


def _tool(tool: object, index: int, *, flat: bool) -> Tool:
    where = f"tools[{index}]"
    if not isinstance(tool, Mapping):
        raise RequestError(f"{where} is not an object.")
    if tool.get("type") != "function":
        raise RequestError(
            f"{where}.type is {_shown(tool.get('type'))}; only 'function' is supported.",
            hint="Other services' built-in and custom tools are not available.",
        )
    if flat and "function" in tool:
        raise RequestError(
            f"{where}.function: in this API a function's name and other fields are beside its type.",
            hint='Use {"type": "function", "name": "…", "parameters": {…}}.',
        )
    if flat:
        return _function({key: value for key, value in tool.items() if key != "type"}, where, strict=True)
    return _function(tool.get("function"), _where(index, flat=flat), strict=False)


def _function(function: object, where: str, *, strict: bool) -> Tool:
    """A function from its fields. `strict`: the default of its `strict` field."""
    if not isinstance(function, Mapping):
        raise RequestError(f"{where} is missing or not an object.")
    description, said = function.get("description"), function.get("strict")
    if description is not None and not isinstance(description, str):
        raise RequestError(f"{where}.description is not text.")
    if said is not None and not isinstance(said, bool):
        raise RequestError(f"{where}.strict is neither true nor false.")
    return Tool(
        name=_name(function.get("name"), f"{where}.name"),
        description=description or "",
        parameters=_parameters(function.get("parameters"), f"{where}.parameters"),
        strict=strict if said is None else said,
    )


def _name(name: object, where: str) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise RequestError(
            f"{where} is {_shown(name)}.",
            hint="A function's name must have 1 to 64 characters from a-z, A-Z, 0-9, '_' and '-'.",
        )
    return name


def _parameters(parameters: object, where: str) -> Mapping[str, Any]:
    if parameters is None:
        return dict(_NO_PARAMETERS)
    if not isinstance(parameters, Mapping) or parameters.get("type") != "object":
        raise RequestError(
            f"{where} is not a JSON schema of type object.",
            hint='The arguments must be an object: {"type": "object", "properties": {…}}.',
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
