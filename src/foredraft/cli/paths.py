"""Folders and files that Foredraft stores data in. No other module decides this."""

from __future__ import annotations

import os
from pathlib import Path

from foredraft import library
from foredraft.cache_folder import default_cache_dir
from foredraft.config import OtherPrograms
from foredraft.errors import ConfigError

CACHE_VARIABLE = "FOREDRAFT_CACHE"


def cache_dir() -> Path:
    """The folder for everything Foredraft stores: $FOREDRAFT_CACHE, or the system's cache folder.

    Raises ConfigError if the variable does not name a possible folder.
    """
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return _folder(chosen)
    return default_cache_dir()


def _folder(chosen: str) -> Path:
    try:
        folder = Path(chosen).expanduser().absolute()
    except RuntimeError:  # raised by pathlib for an unknown user
        raise ConfigError(
            f"{CACHE_VARIABLE} is {chosen}, but that home folder does not exist.", hint="Name another folder."
        ) from None
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{CACHE_VARIABLE} is {folder}, which is not a folder.", hint="Name a folder.")
    return folder


def models_dir() -> Path:
    """The folder that `foredraft models pull` downloads to."""
    return library.models_dir(cache_dir())


def other_programs() -> OtherPrograms:
    """Model folders of Ollama, LM Studio, the Hugging Face libraries and llama.cpp, by their environment
    variables.
    """
    usual = library.usual_places()
    ollama = os.environ.get("OLLAMA_MODELS")
    llamacpp = os.environ.get("LLAMA_CACHE")
    if not llamacpp and (caches := os.environ.get("XDG_CACHE_HOME")):
        llamacpp = os.path.join(caches, "llama.cpp")  # noqa: PTH118 - "~" is not expanded yet
    hub = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    if not hub and (home := os.environ.get("HF_HOME")):
        hub = os.path.join(home, "hub")  # noqa: PTH118 - "~" is not expanded yet
    if not hub and (caches := os.environ.get("XDG_CACHE_HOME")):
        hub = os.path.join(caches, "huggingface", "hub")  # noqa: PTH118
    return OtherPrograms(
        ollama=_named(ollama) or usual.ollama,
        lmstudio=usual.lmstudio,
        huggingface=_named(hub) or usual.huggingface,
        llamacpp=_named(llamacpp) or usual.llamacpp,
    )


def locate(name: str | None) -> Path:
    """The path of a model given by name or path, in any known folder; see `library.resolve`. Raises
    ModelNotFoundError.
    """
    return library.resolve(name, models_dir(), other_programs())


def _named(folder: str | None) -> tuple[Path, ...]:
    return (Path(os.path.expanduser(folder)),) if folder else ()  # noqa: PTH111 - unchanged without a home folder


def store_dir() -> Path:
    """The folder for learned state: cost curves, calibration, past outputs."""
    return cache_dir() / "store"


def making_dir() -> Path:
    """The folder in which heads are made: a folder for each model, with its answers."""
    return cache_dir() / "draft-make"


def history_file() -> Path:
    """The history of lines typed into chats."""
    return cache_dir() / "history"
