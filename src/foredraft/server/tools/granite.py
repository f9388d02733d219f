"""Granite 3: `<|tool_call|>[{"name": …, "arguments": {…}}, …]`. Granite 4 uses Hermes."""

from __future__ import annotations

from typing import Final

from foredraft.server.tools.listed import Listed

GRANITE: Final = Listed(name="granite", opening="<|tool_call|>")
