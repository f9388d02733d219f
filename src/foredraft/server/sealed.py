"""A thought without its text, in the form in which clients hand it back unread: Anthropic's signatures and
OpenAI's encrypted content. Nothing is secret: it is the caller's own, and kept nowhere else.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Final

_MARK: Final = "foredraft:"


def sealed(thought: str) -> str:
    """A thought as text that says nothing to a reader."""
    return _MARK + b64encode(thought.encode("utf-8", "surrogatepass")).decode()


def unsealed(seal: str | None) -> str:
    """The thought; empty if another server sealed it, or it is damaged."""
    if seal is None or not seal.startswith(_MARK):
        return ""
    try:
        return b64decode(seal.removeprefix(_MARK), validate=True).decode("utf-8", "surrogatepass")
    except ValueError:
        return ""
