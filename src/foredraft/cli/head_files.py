"""Whether a file that was named is a head, judged by its header."""

from __future__ import annotations

from typing import TYPE_CHECKING

from foredraft.cli.model_summary import summary_of
from foredraft.cli.paths import models_dir
from foredraft.errors import ForedraftError
from foredraft.library import mmproj
from foredraft.library.adapter_files import adapter_alone
from foredraft.library.head_kinds import ARCHITECTURES, kind_of, no_model
from foredraft.library.heads import resolve_head
from foredraft.library.safetensors_file import SafetensorsSummary

if TYPE_CHECKING:
    from pathlib import Path

    from foredraft.cli.model_summary import Summary


def is_head(name: str | Path) -> bool:
    """Whether a path, or the name of a head in the models folder, is a head; False if it cannot be read."""
    try:
        return says_head(summary_of(resolve_head(str(name), models_dir())))
    except ForedraftError:
        return False


def check_no_head(path: Path, llama_library: Path | None = None) -> None:
    """Raises UnsupportedModelError for a head, an adapter or a file of vision where a model is wanted, before
    anything else is found to lack. What cannot be read is left to loading it.
    """
    try:
        summary = summary_of(path, llama_library)
    except ForedraftError:
        return
    if says_head(summary):
        raise no_model(path)
    if isinstance(summary, SafetensorsSummary):
        return
    if summary.architecture == mmproj.ARCHITECTURE:
        raise mmproj.vision_alone(path)
    if summary.metadata.get("general.type") == "adapter":
        raise adapter_alone(path)


def says_head(summary: Summary) -> bool:
    """Whether a header, or a configuration, is that of a head."""
    if isinstance(summary, SafetensorsSummary):
        return kind_of(summary.config) != ""
    return summary.architecture in ARCHITECTURES
