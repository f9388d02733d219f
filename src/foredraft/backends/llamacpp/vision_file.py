"""Which file a model sees with, and opening it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from foredraft.backends.cpu import physical_cores
from foredraft.backends.llamacpp import devices
from foredraft.backends.llamacpp.gguf_file import check_file, read_gguf
from foredraft.backends.llamacpp.vision import OTHER_FILE, LlamaCppVision
from foredraft.config import ModelOptions
from foredraft.errors import ForedraftError, ModelFormatError, ModelNotFoundError
from foredraft.library.mmproj import ARCHITECTURE, NONE, find_mmproj

if TYPE_CHECKING:
    from foredraft.backends.llamacpp.gguf_file import GGUFSummary

_OF = {
    "cogvlm": ("cogvlm",),
    "gemma3": ("gemma3",),
    "gemma3nv": ("gemma3n",),
    "llama4": ("llama4",),
    "qwen2vl_merger": ("qwen2vl",),
    "qwen2.5vl_merger": ("qwen2vl",),
    "qwen2.5o": ("qwen2vl",),
}
"""The architectures of the models that a type of projector is for, where llama.cpp's converters write it for
no others (conversion/, tools/mtmd/clip-impl.h).
"""

_ONLY = {"cogvlm", "gemma3n", "llama4", "qwen2vl"}
"""Architectures that see with no other projector."""


def mmproj_of(path: Path, options: ModelOptions) -> Path | None:
    """The file of a model's vision: that of the options, else the one beside it if it fits by its header;
    None for a model that does not see. Raises ModelNotFoundError, ModelFormatError.
    """
    if options.mmproj is not None:
        if options.mmproj == NONE:
            return None
        _check_named(options.mmproj, read_gguf(path))
        return options.mmproj
    found = find_mmproj(path)
    return found if found is not None and _fits(found, path) else None


def _check_named(mmproj: Path, model: GGUFSummary) -> None:
    """Raises ModelNotFoundError, and ModelFormatError for a file that is not the vision of such a model."""
    if not mmproj.exists():
        raise ModelNotFoundError(
            f"There is no file {mmproj}.",
            hint="The vision file (mmproj-….gguf) lies beside the model's: 'foredraft models inspect MODEL' "
            "names it.",
        )
    check_file(mmproj)
    found = read_gguf(mmproj)
    if found.architecture != ARCHITECTURE:
        raise ModelFormatError(
            f"{mmproj} is not the vision of a model.",
            hint="Its file is named mmproj-….gguf, and lies beside the model's.",
        )
    if not _of_family(found, model):
        kind = _projector(found)
        family = " or ".join(_OF.get(kind, (kind,)))
        raise ModelFormatError(
            f"{mmproj.name} is no vision for this model: it is for {family}, the model is "
            f"{model.architecture}.",
            hint=OTHER_FILE,
        )


def _projector(mmproj: GGUFSummary) -> str:
    """The type of the projector; "" if the file does not say."""
    keys = ("clip.projector_type", "clip.vision.projector_type")
    return next((str(value) for key in keys if (value := mmproj.metadata.get(key))), "")


def _of_family(mmproj: GGUFSummary, model: GGUFSummary) -> bool:
    """Whether the projector is that of the model's architecture, as far as that is known."""
    kind = _projector(mmproj)
    if kind in _OF:
        return model.architecture in _OF[kind]
    return not kind or model.architecture not in _ONLY


def _fits(mmproj: Path, path: Path) -> bool:
    """Whether it is the vision of a model of this family, and as wide as this one."""
    try:
        found, model = read_gguf(mmproj), read_gguf(path)
    except ForedraftError:
        return False
    width = found.metadata.get("clip.vision.projection_dim")
    return found.architecture == ARCHITECTURE and width == model.embedding_length and _of_family(found, model)


def open_vision(weights: Any, options: ModelOptions, device: str) -> LlamaCppVision | None:
    """Open the file of the model's vision, if there is one."""
    if options.mmproj is None:
        return None
    return LlamaCppVision(
        options.mmproj,
        weights,
        threads=options.threads or physical_cores(),
        gpu=device != devices.CPU,
        most=min(options.ubatch, options.batch),
    )
