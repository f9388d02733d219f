"""Selects a model's tool-call dialect by its chat template; names of models and files are not reliable."""

from __future__ import annotations

import re
from collections.abc import Set
from typing import Final

from foredraft.server.tools import deepseek, harmony, mistral, pythonic
from foredraft.server.tools.command import COMMAND
from foredraft.server.tools.dialect import Dialect
from foredraft.server.tools.gemma import FUNCTION_GEMMA, GEMMA
from foredraft.server.tools.glm import GLM, KEY
from foredraft.server.tools.granite import GRANITE
from foredraft.server.tools.hermes import HERMES, OPEN
from foredraft.server.tools.llama3 import LLAMA3, PYTHON_TAG
from foredraft.server.tools.phi4 import PHI4, PHI4_FUNCTOOLS
from foredraft.server.tools.qwen_coder import FUNCTION, PARAMETER, QWEN_CODER

_COMMENT: Final = re.compile(r"\{#.*?#\}", re.DOTALL)
_CODE: Final = re.compile(r"\{[{%](.*?)[%}]\}", re.DOTALL)
_IPYTHON: Final = re.compile(r"<\|start_header_id\|>ipython|['\"]ipython['\"]")
_NAME_AND_BRACKET: Final = re.compile(r"name['\"]?\]?\s*[+~]\s*['\"]\(")
_IN_MESSAGE: Final = re.compile(r"message(?:\.tools\b|\[['\"]tools['\"]\])")
_RAW_ARGUMENTS: Final = re.compile(r"(?:\{\{-?|[+~])\s*[\w.\[\]'\"]*arguments['\"]?\]?\s*(?:[+~]|-?\}\})")
_TAKEN_APART: Final = re.compile(r"arguments['\"]?\]?\s*(?:is\s|\|\s*items|\.items)")

_MARKS: Final[tuple[tuple[tuple[str, ...], Dialect], ...]] = (
    ((harmony.CHANNEL, "functions."), harmony.HARMONY),
    ((COMMAND.opening,), COMMAND),
    ((deepseek.CALLS, deepseek.FENCE), deepseek.DEEPSEEK_FENCED),
    ((deepseek.CALLS,), deepseek.DEEPSEEK),
    ((GEMMA.opening,), GEMMA),
    ((FUNCTION_GEMMA.opening,), FUNCTION_GEMMA),
    ((OPEN, FUNCTION, PARAMETER), QWEN_CODER),
    ((KEY,), GLM),
    ((OPEN,), HERMES),
    ((mistral.TOOL_CALLS, mistral.ARGS), mistral.MISTRAL_NAMED),
    ((mistral.TOOL_CALLS,), mistral.MISTRAL),
    ((PHI4.closing,), PHI4),
    (("<|tool|>",), PHI4),
    ((f"{PHI4_FUNCTOOLS.opening}[",), PHI4_FUNCTOOLS),
    ((GRANITE.opening,), GRANITE),
    ((pythonic.LFM_OPEN,), pythonic.LFM),
    ((pythonic.FENCE,), pythonic.PYTHONIC),
)
"""Texts that a template must contain, and its dialect; the first match counts. `<tool_call>` comes before
Mistral and Llama because their fine-tunes add it.
"""


def known_dialect(chat_template: str) -> Dialect | None:
    """The dialect whose markers the template writes; None if it writes no known ones."""
    for marks, dialect in _MARKS:
        if all(mark in chat_template for mark in marks):
            return dialect
    if _NAME_AND_BRACKET.search(chat_template):
        return pythonic.PYTHONIC
    if PYTHON_TAG in chat_template or _IPYTHON.search(chat_template):
        return LLAMA3
    return None


def dialect_for(chat_template: str) -> Dialect:
    """The dialect whose markers the template writes; Hermes if it writes none."""
    return known_dialect(chat_template) or HERMES


def tools_in_message(chat_template: str) -> bool:
    """Whether the template reads the tools from the system message, as JSON text."""
    return any(_IN_MESSAGE.search(block) for block in _CODE.findall(_COMMENT.sub("", chat_template)))


def text_arguments(chat_template: str) -> bool:
    """Whether the template prints the arguments of earlier calls unchanged, so that they must be text."""
    code = _COMMENT.sub("", chat_template)
    return bool(_RAW_ARGUMENTS.search(code)) and not _TAKEN_APART.search(code)


def spoken_dialect(chat_template: str, variables: Set[str]) -> Dialect:
    """The dialect of answers: if the template does not support tools, that of our own tool prompt, unless the
    model's answers have structure without tools. `variables`: the template's input variables.
    """
    dialect = dialect_for(chat_template)
    told = "tools" in variables or tools_in_message(chat_template)
    return dialect if told or dialect.always_read else HERMES


def describe_tools(chat_template: str, variables: Set[str]) -> tuple[bool, str]:
    """Whether calls are parsed in the template's own form, and a description (it reads `variables`)."""
    known = known_dialect(chat_template)
    if "tools" not in variables and not tools_in_message(chat_template):
        return True, "the chat template does not support tools: they are described in the prompt (hermes)"
    if known is None:
        return False, "the chat template writes calls in an unknown form: calls in the hermes form are parsed"
    return True, f"calls are parsed in the form of the chat template ({known.name})"
