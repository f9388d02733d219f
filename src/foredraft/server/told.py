"""Texts with paths, for callers who are not the admin: of a path they are told the name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_FOLDERS = re.compile(
    r"(?<![\w.)\]}/\\])"  # not within a word, an address or a ratio
    r"(?:[A-Za-z]:[/\\]|~[/\\]|/(?!/|(?:v1|console|docs|health|metrics|tokenize|detokenize)\b)(?=[^\s/]))"
    r"(?:[^:;,=\"'\n]*[/\\])?"
)
"""The folders of an absolute path in a sentence, up to the last slash: rather too much than too little."""


def names_of_paths(text: str) -> str:
    """The text without the folders of absolute paths. Paths of this server's API stay."""
    return _FOLDERS.sub("", text)


def without_paths(value: Any) -> Any:
    """The same of all texts in a value of mappings and sequences."""
    if isinstance(value, str):
        return names_of_paths(value)
    if isinstance(value, Mapping):
        return {name: without_paths(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [without_paths(each) for each in value]
    return value
