"""Dialects by what templates say."""

from __future__ import annotations

import pytest

from foredraft.server.tools.detect import dialect_for
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
