"""Whether a file that was named is a head, judged by its header."""

from __future__ import annotations

from typing import TYPE_CHECKING

from foredraft.cli.model_summary import summary_of
from foredraft.cli.paths import models_dir
from foredraft.errors import ForedraftError
from foredraft.library.heads import resolve_head

if TYPE_CHECKING:
    from pathlib import Path

KINDS = ("eagle3", "dflash", "dspark")


def is_head(name: str | Path) -> bool:
    """Whether a path, or the name of a head in the models folder, is a head; False if it cannot be read."""
    try:
        summary = summary_of(resolve_head(str(name), models_dir()))
    except ForedraftError:
        return False
    return any(kind in summary.architecture.lower() for kind in KINDS)
