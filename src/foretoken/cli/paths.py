"""Where Foretoken keeps things on this computer. The only place that decides it."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

from foretoken import library

CACHE_VARIABLE = "FORETOKEN_CACHE"


def cache_dir() -> Path:
    """The folder for everything Foretoken stores: $FORETOKEN_CACHE, or the system's place for caches."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser().absolute()
    return Path(platformdirs.user_cache_dir("foretoken", appauthor=False))


def models_dir() -> Path:
    """Where `foretoken models pull` puts models."""
    return library.models_dir(cache_dir())


def store_dir() -> Path:
    """What is learned from runs: cost curves, calibration, past outputs that drafters use."""
    return cache_dir() / "store"


def history_file() -> Path:
    """The lines typed into interactive sessions."""
    return cache_dir() / "history"
