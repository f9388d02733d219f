"""The kinds of tools in OpenAI's Responses API, as the functions that a model can call.

A custom tool takes a text instead of JSON: the model sees a function whose one argument is that text. The
functions of a namespace are seen as `namespace__name`. Tools that OpenAI's servers would run do not exist
here: they are left out, unless nothing else is offered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field
from pydantic_core import from_json

HOSTED: Final = (
    "web_search",
    "web_search_preview",
    "web_search_2025_08_26",
    "web_search_preview_2025_03_11",
    "file_search",
    "code_interpreter",
    "image_generation",
    "tool_search",
)
"""Tools that OpenAI's servers run."""

TEXT: Final = "input"
"""The argument of a function that stands for a custom tool."""


def called_as(name: str, namespace: str | None) -> str:
    """The name by which a model calls a function of a namespace; None: of none."""
    if not namespace:
        return name
    return f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"


def check_tool(tool: Any) -> Any:
    """Raises ValueError for a tool of a kind that is neither understood nor can be left out."""
    kind = tool.get("type") if isinstance(tool, dict) else None
    if isinstance(kind, str) and kind not in ("function", "custom", "namespace", *HOSTED):
        raise ValueError(f"a tool of type {kind!r} is not supported; only your own functions are")
    if kind == "custom" and not isinstance(tool.get("name"), str):
        raise ValueError("a custom tool needs a name")
    if kind == "namespace":
        inner = tool.get("tools")
        if not isinstance(tool.get("name"), str) or not isinstance(inner, list):
            raise ValueError("a namespace needs a name and a list of tools")
        for one in inner:
            if not isinstance(one, dict) or one.get("type") not in ("function", "custom"):
                raise ValueError("the tools of a namespace are functions and custom tools")
            check_tool(one)
    return tool


AnyTools = Annotated[list[Annotated[dict[str, Any], BeforeValidator(check_tool)]], Field(fail_fast=True)]


def tool_shapes(tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The functions among tools and in their namespaces, whose unknown fields are looked at."""
    inner = [one for tool in tools if tool.get("type") == "namespace" for one in tool.get("tools") or ()]
    return [tool for tool in [*tools, *inner] if tool.get("type") == "function"]


class Offered:
    """The tools of a request: as `functions`, and how calls of them are written."""

    def __init__(self, tools: Sequence[dict[str, Any]] | None) -> None:
        self.functions: list[dict[str, Any]] | None = None if tools is None else []
        self._written: dict[str, tuple[str, str, str | None]] = {}
        for tool in tools or ():
            if tool.get("type") == "namespace":
                for one in tool["tools"]:
                    self._add(one, tool["name"])
            elif tool.get("type") not in HOSTED:
                self._add(tool, None)

    def _add(self, tool: dict[str, Any], namespace: str | None) -> None:
        assert self.functions is not None
        name = tool.get("name")
        if not isinstance(name, str):  # refused where functions are checked
            self.functions.append(tool)
            return
        function = _as_function(tool) if tool.get("type") == "custom" else tool
        shown = called_as(name, namespace)
        self.functions.append({**function, "name": shown})
        self._written[shown] = (str(tool.get("type")), name, namespace)

    def is_custom(self, shown: str) -> bool:
        """Whether the function that the model calls by this name stands for a custom tool."""
        return self._written.get(shown, ("function",))[0] == "custom"

    def names(self, shown: str) -> dict[str, str]:
        """The name of a call, and its namespace if it has one."""
        _, name, namespace = self._written.get(shown, ("", shown, None))
        return {"name": name} if namespace is None else {"name": name, "namespace": namespace}

    def choice(self, choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
        """`tool_choice`, with functions in the place of custom tools."""
        if not isinstance(choice, dict):
            return choice
        if isinstance(listed := choice.get("tools"), list):
            return {**choice, "tools": [_chosen(one) for one in listed]}
        named: dict[str, Any] = _chosen(choice)
        return named


def read_text(json_text: str) -> str:
    """A custom tool's input in the arguments of its function, as far as they are written."""
    try:
        given = from_json(json_text or "{}", allow_partial="trailing-strings")
    except ValueError:
        return ""
    text = given.get(TEXT) if isinstance(given, dict) else None
    return text if isinstance(text, str) else ""


def left_out(tools: Sequence[Mapping[str, Any]] | None) -> list[str]:
    """The kinds of tools that no answer can use."""
    return [str(tool["type"]) for tool in tools or () if tool.get("type") in HOSTED]


def _as_function(tool: Mapping[str, Any]) -> dict[str, Any]:
    described, form = str(tool.get("description") or ""), tool.get("format")
    if isinstance(form, Mapping) and form.get("type") == "grammar":
        grammar = f"The {TEXT} has to follow this grammar ({form.get('syntax')}):\n{form.get('definition')}"
        described = f"{described}\n{grammar}" if described else grammar
    schema = {"type": "object", "properties": {TEXT: {"type": "string"}}, "required": [TEXT]}
    return {
        "type": "function",
        "name": tool["name"],
        "description": described,
        "parameters": {**schema, "additionalProperties": False},
        "strict": False,
    }


def _chosen(choice: Any) -> Any:
    """A choice by name, as one of a function."""
    if not isinstance(choice, dict) or choice.get("type") not in ("custom", "function"):
        return choice
    if not isinstance(choice.get("name"), str):
        return choice
    rest = {key: value for key, value in choice.items() if key != "namespace"}
    return {**rest, "type": "function", "name": called_as(choice["name"], choice.get("namespace"))}
