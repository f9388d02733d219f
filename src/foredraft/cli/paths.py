"""Where Foredraft keeps things on this computer. The only place that decides it."""

from __future__ import annotations

import os
from pathlib import Path

from foredraft import library
from foredraft.cache_folder import default_cache_dir
from foredraft.config import OtherPrograms
from foredraft.errors import ConfigError

CACHE_VARIABLE = "FOREDRAFT_CACHE"


def cache_dir() -> Path:
    """The folder for everything Foredraft stores: $FOREDRAFT_CACHE, or the system's place for caches.

    Raises ConfigError where the variable names what cannot be a folder.
    """
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return _folder(chosen)
    return default_cache_dir()


def _folder(chosen: str) -> Path:
    try:
        folder = Path(chosen).expanduser().absolute()
    except RuntimeError:  # how pathlib says that there is no such user
        raise ConfigError(
            f"{CACHE_VARIABLE} is {chosen}, and there is no such home folder.", hint="Name another folder."
        ) from None
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{CACHE_VARIABLE} is {folder}, which is no folder.", hint="Name a folder.")
    return folder


def models_dir() -> Path:
    """Where `foredraft models pull` puts models."""
    return library.models_dir(cache_dir())


def other_programs() -> OtherPrograms:
    """Where Ollama, LM Studio and the Hugging Face libraries keep models, by their own variables."""
    usual = library.usual_places()
    ollama = os.environ.get("OLLAMA_MODELS")
    hub = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    if not hub and (home := os.environ.get("HF_HOME")):
        hub = os.path.join(home, "hub")  # noqa: PTH118 - "~" is still in it
    if not hub and (caches := os.environ.get("XDG_CACHE_HOME")):
        hub = os.path.join(caches, "huggingface", "hub")  # noqa: PTH118
    return OtherPrograms(
        ollama=_named(ollama) or usual.ollama,
        lmstudio=usual.lmstudio,
        huggingface=_named(hub) or usual.huggingface,
    )


def locate(name: str | None) -> Path:
    """The model of a name or a path, whoever keeps it; see `library.resolve`. Raises ModelNotFoundError."""
    return library.resolve(name, models_dir(), other_programs())


def _named(folder: str | None) -> tuple[Path, ...]:
    return (Path(os.path.expanduser(folder)),) if folder else ()  # noqa: PTH111 - without a home as it is


def store_dir() -> Path:
    """What is learned from runs: cost curves, calibration, past outputs that drafters use."""
    return cache_dir() / "store"


def history_file() -> Path:
    """The lines typed into interactive sessions."""
    return cache_dir() / "history"
