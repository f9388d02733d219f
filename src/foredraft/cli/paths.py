"""Where Foredraft keeps things on this computer. The only place that decides it."""

from __future__ import annotations

import os
from pathlib import Path

from foredraft import library
from foredraft.cache_folder import default_cache_dir
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


def store_dir() -> Path:
    """What is learned from runs: cost curves, calibration, past outputs that drafters use."""
    return cache_dir() / "store"


def history_file() -> Path:
    """The lines typed into interactive sessions."""
    return cache_dir() / "history"
