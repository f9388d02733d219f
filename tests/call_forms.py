"""Every form in which models write calls: its dialect, and how a model of it writes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from foredraft.server.tools.command import COMMAND
from foredraft.server.tools.deepseek import DEEPSEEK, DEEPSEEK_FENCED
from foredraft.server.tools.dialect import Dialect
from foredraft.server.tools.gemma import FUNCTION_GEMMA, GEMMA
from foredraft.server.tools.glm import GLM
from foredraft.server.tools.granite import GRANITE
from foredraft.server.tools.harmony import HARMONY
from foredraft.server.tools.hermes import HERMES
from foredraft.server.tools.llama3 import LLAMA3
from foredraft.server.tools.mistral import MISTRAL, MISTRAL_NAMED
from foredraft.server.tools.phi4 import PHI4, PHI4_FUNCTOOLS
from foredraft.server.tools.pythonic import LFM, PYTHONIC
from foredraft.server.tools.qwen_coder import QWEN_CODER

Made = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Form:
    """A dialect and its writing: `one` call, and what stands `before`, `between` and `after` calls. `words`:
    how text is written beside them.
    """

    dialect: Dialect
    one: Callable[[str, dict[str, Any]], str]
    before: str = ""
    between: str = ""
    after: str = ""
    words: str = "{}"

    def write(self, calls: Sequence[Made]) -> str:
        """An answer that is these calls."""
        return self.before + self.between.join(self.one(*call) for call in calls) + self.after

    def say(self, text: str) -> str:
        """A text as it stands in an answer."""
        return self.words.format(text)


def js(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def named(
    key: str = "arguments", name: str = "name", extra: str = ""
) -> Callable[[str, dict[str, Any]], str]:
    return lambda function, given: f'{{{extra}"{name}": "{function}", "{key}": {js(given)}}}'


def bare(value: object) -> str:
    return value if isinstance(value, str) else js(value)


def qwen(name: str, given: dict[str, Any]) -> str:
    tags = "".join(f"<parameter={key}>\n{bare(value)}\n</parameter>\n" for key, value in given.items())
    return f"<tool_call>\n<function={name}>\n{tags}</function>\n</tool_call>"


def glm(name: str, given: dict[str, Any]) -> str:
    tags = "".join(
        f"<arg_key>{key}</arg_key>\n<arg_value>{bare(value)}</arg_value>\n" for key, value in given.items()
    )
    return f"<tool_call>{name}\n{tags}</tool_call>"


def harmony(name: str, given: dict[str, Any]) -> str:
    return f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{js(given)}<|call|>"


def deepseek(name: str, given: dict[str, Any]) -> str:
    return f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{js(given)}<｜tool▁call▁end｜>"


def fenced(name: str, given: dict[str, Any]) -> str:
    head = f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}"
    return f"{head}\n```json\n{js(given)}\n```<｜tool▁call▁end｜>"


def noted(value: object, quote: str) -> str:
    if isinstance(value, str):
        return f"{quote}{value}{quote}"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{noted(each, quote)}' for key, each in value.items())}}}"
    if isinstance(value, list):
        return f"[{','.join(noted(each, quote) for each in value)}]"
    return js(value)


def gemma(opening: str, closing: str, quote: str) -> Callable[[str, dict[str, Any]], str]:
    return lambda name, given: f"{opening}call:{name}{noted(given, quote)}{closing}"


def python(name: str, given: dict[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in given.items())})"


FINAL = "<|channel|>final<|message|>{}<|end|><|start|>assistant"
MARKS = {"before": "<｜tool▁calls▁begin｜>", "after": "<｜tool▁calls▁end｜>"}
FORMS = {
    "hermes": Form(HERMES, lambda *call: f"<tool_call>\n{named()(*call)}\n</tool_call>", between="\n"),
    "llama3": Form(LLAMA3, named("parameters"), between="; ", before="<|python_tag|>"),
    "mistral": Form(MISTRAL, named(), "[TOOL_CALLS][", ", ", "]"),
    "mistral-named": Form(MISTRAL_NAMED, lambda name, given: f"[TOOL_CALLS]{name}[ARGS]{js(given)}"),
    "qwen-coder": Form(QWEN_CODER, qwen, between="\n"),
    "glm": Form(GLM, glm, between="\n"),
    "deepseek": Form(DEEPSEEK, deepseek, **MARKS),
    "deepseek-fenced": Form(DEEPSEEK_FENCED, fenced, between="\n", **MARKS),
    "harmony": Form(HARMONY, harmony, between="<|start|>assistant", words=FINAL),
    "phi4": Form(PHI4, named(), "<|tool_call|>[", ", ", "]<|/tool_call|>"),
    "phi4-functools": Form(PHI4_FUNCTOOLS, named(), "functools[", ", ", "]"),
    "granite": Form(GRANITE, named(), "<|tool_call|>[", ", ", "]"),
    "command": Form(
        COMMAND,
        named("parameters", "tool_name", '"tool_call_id": "0", '),
        "<|START_ACTION|>[\n    ", ",\n    ", "\n]<|END_ACTION|>",
        words="<|START_RESPONSE|>{}<|END_RESPONSE|>",
    ),
    "gemma": Form(GEMMA, gemma("<|tool_call>", "<tool_call|>", '<|"|>')),
    "function-gemma": Form(FUNCTION_GEMMA, gemma("<start_function_call>", "<end_function_call>", "<escape>")),
    "pythonic": Form(PYTHONIC, python, "```tool_code\n[", ", ", "]\n```"),
    "lfm": Form(LFM, python, "<|tool_call_start|>[", ", ", "]<|tool_call_end|>"),
}  # fmt: skip
