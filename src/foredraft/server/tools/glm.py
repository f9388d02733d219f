"""GLM 4.5 and later: `<tool_call>NAME`, then `<arg_key>…</arg_key>` and `<arg_value>…</arg_value>` pairs."""

from __future__ import annotations

from typing import Final

from foredraft.server.tools.hermes import CLOSE, OPEN
from foredraft.server.tools.tagged import Tags
from foredraft.server.tools.tagged_form import Tagged

KEY: Final = "<arg_key>"

GLM: Final = Tagged(
    name="glm",
    tags=Tags(
        name=("", ""),
        key=(KEY, "</arg_key>"),
        value=("<arg_value>", "</arg_value>"),
        end=CLOSE,
        lines=False,
    ),
    opening=OPEN,
    closing=CLOSE,
)
