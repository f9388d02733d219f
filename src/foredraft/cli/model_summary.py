"""Summary of a model's file or folder, for either format."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from foredraft.backends.rope import Positions, positions_of_parameters
from foredraft.config import ModelOptions
from foredraft.errors import ForedraftError
from foredraft.library.kinds import only_embeds
from foredraft.library.repository import repository_of
from foredraft.library.safetensors_file import SafetensorsSummary, read_safetensors
from foredraft.registry import backend_for

if TYPE_CHECKING:
    from foredraft.backends.llamacpp.gguf_file import GGUFSummary
    from foredraft.embedding import ModelKind

    Summary: TypeAlias = GGUFSummary | SafetensorsSummary


def summary_of(path: Path, llama_library: Path | None = None) -> Summary:
    """Summary of a file or folder found by `library.resolve`; `llama_library` as in `ModelOptions`. Raises
    ModelError, MissingDependencyError, ConfigError (of the library).
    """
    folder = repository_of(path)
    if folder is not None:
        return read_safetensors(folder)
    from foredraft.backends.llamacpp import binding
    from foredraft.backends.llamacpp.gguf_file import read_gguf

    binding.choose(llama_library)
    return read_gguf(path)


def kind_of(path: Path) -> ModelKind | None:
    """What a file or folder is for; None if it cannot be read."""
    try:
        return backend_for(path).kind(path)
    except (ForedraftError, OSError):
        return None


def vision_of(path: Path) -> Path | None:
    """The file of vision (mmproj) that a GGUF is loaded with unasked; None if there is none that fits."""
    if repository_of(path) is not None:
        return None
    from foredraft.backends.llamacpp.vision_file import mmproj_of

    return mmproj_of(path, ModelOptions())


def check_generates(path: Path, llama_library: Path | None = None) -> None:
    """Raises UnsupportedModelError for an embedding model or reranker, before anything is loaded. What cannot
    be read is left to loading it.
    """
    try:
        kind = backend_for(path).kind(path, ModelOptions(llama_library=llama_library))
    except ForedraftError:
        return
    if kind != "generative":
        raise only_embeds(path.name, kind)


def positions_in(summary: Summary) -> Positions:
    """The scaling of positions that a summarised file or folder says."""
    if not isinstance(summary, SafetensorsSummary):
        from foredraft.backends.llamacpp import rope

        return rope.positions_in(summary)
    text = summary.config.get("text_config")
    text = text if isinstance(text, dict) else summary.config
    rotary = text.get("rope_parameters") or text.get("rope_scaling") or {}
    layers = [kind for kind in rotary.values() if isinstance(kind, dict)]  # for each kind of layers
    scaled = (kind for kind in layers if kind.get("rope_type") not in (None, "default"))
    return positions_of_parameters(next(scaled, {}) if layers else rotary, summary.context_length)


def context_row(summary: Summary) -> str:
    """The context length in words: what the model was trained for, its scaling, and the context that gives;
    "" if the file does not say.
    """
    positions = positions_in(summary)
    if not positions.trained:
        return ""
    text = f"{positions.reach:,} tokens"
    return f"{text}, by {positions}" if str(positions) else text
