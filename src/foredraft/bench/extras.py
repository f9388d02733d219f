"""Packages that only benchmarks need: imported when they are used, and named when they are missing."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from foredraft import installation
from foredraft.errors import MissingDependencyError


def needed(module: str, purpose: str) -> Any:
    """The module. Raises MissingDependencyError with the line that installs it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise
        package = module.partition(".")[0]
        raise MissingDependencyError(
            f"{purpose} needs the Python package {package!r}, which is not installed.",
            hint=f"Install it with: {installation.add_extra('bench')}",
        ) from None
