"""Summary of a model's file or folder, for either format."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from foredraft.library.repository import repository_of
from foredraft.library.safetensors_file import SafetensorsSummary, read_safetensors

if TYPE_CHECKING:
    from foredraft.backends.llamacpp.gguf_file import GGUFSummary

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
