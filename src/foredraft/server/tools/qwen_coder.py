"""Qwen 3 Coder and 3.5: `<tool_call>` with `<function=NAME>` and a `<parameter=KEY>` for each argument.

Each tag and each value is on its own line. The outer tag is sometimes missing.
"""

from __future__ import annotations

from typing import Final

from foredraft.server.tools.hermes import CLOSE, OPEN
from foredraft.server.tools.tagged import Tags
from foredraft.server.tools.tagged_form import Tagged

FUNCTION: Final = "<function="
PARAMETER: Final = "<parameter="

QWEN_CODER: Final = Tagged(
    name="qwen-coder",
    tags=Tags(
        name=(FUNCTION, ">"),
        key=(PARAMETER, ">"),
        value=("", "</parameter>"),
        end="</function>",
        lines=True,
    ),
    opening=OPEN,
    closing=CLOSE,
)
