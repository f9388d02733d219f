"""Blocks that are text in another shape: found passages, documents of plain text, references to tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def as_text(block: Any) -> Any:
    """The text block that says what such a block says; any other block as it is."""
    kind = block.get("type") if isinstance(block, Mapping) else None
    text = None
    if kind == "tool_reference":
        # The tools that it refers to are in the request like all others.
        text = f"The tool {block.get('tool_name')} can be called."
    elif kind == "search_result":
        text = _joined(block.get("title"), block.get("source"), _content(block.get("content")))
    elif kind == "document":
        text = _document(block)
    if text is None:
        return block
    return {"type": "text", "text": text, "cache_control": block.get("cache_control")}


def _document(block: Mapping[str, Any]) -> str | None:
    """None: it is not of text."""
    source = block.get("source")
    if not isinstance(source, Mapping):
        return None
    content = {"text": source.get("data"), "content": source.get("content")}.get(str(source.get("type")))
    written = _content(content)
    return None if written is None else _joined(block.get("title"), block.get("context"), written)


def _content(content: Any) -> str | None:
    """A text, or text blocks, a line each; None: something else."""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        return None
    texts = [part.get("text") if isinstance(part, Mapping) else None for part in content]
    return "\n".join(texts) if all(isinstance(text, str) for text in texts) else None  # type: ignore[arg-type]


def _joined(first: Any, second: Any, text: str | None) -> str | None:
    if text is None:
        return None
    return "\n".join([*(one for one in (first, second) if isinstance(one, str) and one), text])
