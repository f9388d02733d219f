"""Dialects by what templates say."""

from __future__ import annotations

import pytest

from foredraft.server.tools.command import COMMAND
from foredraft.server.tools.deepseek import DEEPSEEK, DEEPSEEK_FENCED
from foredraft.server.tools.detect import (
    describe_tools,
    dialect_for,
    spoken_dialect,
    text_arguments,
)
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

TOOLS = {"tools"}


@pytest.mark.parametrize(
    ("template", "dialect"),
    [
        ("{% if tools %}<tool_call>{% endif %}", HERMES),
        ("{% if tools %}[AVAILABLE_TOOLS]{% endif %}[TOOL_CALLS] [", MISTRAL),
        ("{{ '[TOOL_CALLS]' + call.name + '[ARGS]' }}", MISTRAL_NAMED),
        ("{{ '<|python_tag|>' + call.name }}", LLAMA3),
        ("{% if message.role == 'ipython' %}{% endif %}", LLAMA3),
        ("<|start_header_id|>ipython<|end_header_id|>", LLAMA3),
        ("<|start_header_id|>ipython<|end_header_id|> <tool_call>", HERMES),
        ("{{ messages }}", HERMES),
        ("", HERMES),
        ("{% if tools %}<tool_call>\n<function=f>\n<parameter=a>{% endif %}", QWEN_CODER),
        ("{% if tools %}<tool_call>{name}\n<arg_key>{key}</arg_key>{% endif %}", GLM),
        ("{{ '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + name + '<｜tool▁sep｜>' }}", DEEPSEEK),
        ("{{ '<｜tool▁calls▁begin｜>' + tool['type'] + '\n```json\n' }}", DEEPSEEK_FENCED),
        ("{{ '<|start|>assistant to=functions.' + name + '<|channel|>commentary json' }}", HARMONY),
        ("{{ '<|tool_call>call:' + name + '{' }}", GEMMA),
        ("{{ '<start_function_call>call:' + name + '{' }}", FUNCTION_GEMMA),
        ("{{ '<|tool_call|>' + call + '<|/tool_call|>' }}", PHI4),
        ("{{ '<|tool|>' + message['tools'] + '<|/tool|>' }}", PHI4),
        ('formatted as functools[{"name": [function name]}]', PHI4_FUNCTOOLS),
        ("respond only with <|tool_call|> followed by a JSON list", GRANITE),
        ("<|START_ACTION|>[{% for call in message.tool_calls %}", COMMAND),
        ("{{ '<|tool_call_start|>[' + call + ']<|tool_call_end|>' }}", LFM),
        ("{{ tool_call.name + '(' }}", PYTHONIC),
        ("a fence of ```tool_code", PYTHONIC),
    ],
)
def test_dialects(template: str, dialect: Dialect) -> None:
    assert dialect_for(template) == dialect


def test_the_form_that_is_spoken_is_the_one_that_was_asked_for() -> None:
    """A template that takes no tools gets them described in our words, whatever it writes calls like."""
    writes = "{{ '<｜tool▁calls▁begin｜>' + name }}"
    assert spoken_dialect(writes, set()) is HERMES
    assert spoken_dialect(writes, TOOLS) is DEEPSEEK
    assert spoken_dialect("{{ message['tools'] }}<|tool|>", set()) is PHI4
    channels = spoken_dialect("to=functions.<|channel|>", set())
    assert channels is HARMONY, "its answers have channels without tools"


@pytest.mark.parametrize(
    ("template", "variables", "known", "says"),
    [
        ("{{ messages }}", set(), True, "described in the prompt"),
        ("<tool_call>", TOOLS, True, "in the form of the chat template (hermes)"),
        ("<function_call>", TOOLS, False, "in an unknown form"),
    ],
)
def test_what_is_said_of_a_template(template: str, variables: set[str], known: bool, says: str) -> None:
    assert describe_tools(template, variables)[0] is known
    assert says in describe_tools(template, variables)[1]


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ '<sep>' + tool['function']['arguments'] + '<end>' }}", True),
        ("{{ call.function.arguments }}", True),
        ("{{- tool_call.name ~ tool_call.arguments ~ '}' -}}", True),
        ("{{ tool['function']['arguments']|tojson + '\n' }}", False),
        ("{{ tool_call.arguments | tojson }}", False),
        ("{% for k, v in tool_call.arguments|items %}{{ k }}{% endfor %}", False),
        (
            "{% if c.arguments is string %}{{ c.arguments }}{% else %}{{ c.arguments|tojson }}{% endif %}",
            False,
        ),
        ("{# {{ c.arguments }} #}", False),
    ],
)
def test_whether_a_template_wants_arguments_as_text(template: str, text: bool) -> None:
    assert text_arguments(template) is text
