"""Phi 4 mini: `<|tool_call|>[{"name": …, "arguments": {…}}, …]<|/tool_call|>`, or `functools[…]`."""

from __future__ import annotations

from typing import Final

from foredraft.server.tools.listed import Listed

PHI4: Final = Listed(name="phi4", opening="<|tool_call|>", closing="<|/tool_call|>")
PHI4_FUNCTOOLS: Final = Listed(name="phi4-functools", opening="functools")
"""The marker that one of its templates describes in words."""
