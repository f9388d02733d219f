"""Dialects by what templates say."""

from __future__ import annotations

import pytest

from foredraft.server.tools.detect import dialect_for, template_supports_tools
from foredraft.server.tools.dialect import Dialect
from foredraft.server.tools.hermes import HERMES
from foredraft.server.tools.llama3 import LLAMA3
from foredraft.server.tools.mistral import MISTRAL, MISTRAL_NAMED


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
    ],
)
def test_dialects(template: str, dialect: Dialect) -> None:
    assert dialect_for(template) == dialect


@pytest.mark.parametrize(
    ("template", "supports"),
    [
        ("{%- if tools %}x{% endif %}", True),
        ("{% for tool in tools %}{{ tool | tojson }}{% endfor %}", True),
        ("{{ '[AVAILABLE_TOOLS]' + tools|string }}", True),
        ("{% if x\n  and tools is not none %}{% endif %}", True),
        ("{{ messages }}", False),
        ("You have tools.", False),
        ("{{ 'no tools here' }}", False),
        ('{{ "tools \\" tools" }}', False),
        ("{# if tools #}{{ messages }}", False),
        ("{% if builtin_tools %}{% endif %}", False),
        ("{% if message.tools %}{% endif %}", False),
        ("", False),
    ],
)
def test_whether_a_template_reads_tools(template: str, supports: bool) -> None:
    assert template_supports_tools(template) is supports
