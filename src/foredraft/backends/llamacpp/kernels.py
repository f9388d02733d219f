"""Foredraft's own kernels for llama.cpp: whether they are in use."""

from __future__ import annotations


def built_in() -> str:
    """The kernels' version and names; empty without any."""
    return ""


def has(name: str) -> bool:
    """Whether the kernels of this name are in use."""
    return name in built_in().split()[1:]


def describe() -> str:
    """Descriptions of those in use; empty if there are none."""
    return ""
