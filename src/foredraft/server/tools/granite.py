"""Granite 3: `<|tool_call|>[{"name": …, "arguments": {…}}, …]`, without an end. (Granite 4 speaks Hermes.)"""

from __future__ import annotations

from typing import Final

from foredraft.server.tools.listed import Listed

GRANITE: Final = Listed(name="granite", opening="<|tool_call|>")
