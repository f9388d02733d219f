"""From the name of an embedding model, or a reranker, and options to an `Embedder`."""

from __future__ import annotations

from pathlib import Path

from foredraft.embedding import Embedder, ModelKind, Pooling
from foredraft.engine.options import EngineOptions, model_options
from foredraft.errors import ConfigError
from foredraft.library import models_dir, resolve
from foredraft.registry import backend_for


def kind_of(model: str | Path | None, options: EngineOptions) -> ModelKind:
    """What a model is for, as its files say. Raises ConfigError, ModelError, MissingDependencyError."""
    path = _find(model, options)
    return backend_for(path).kind(path, model_options(options).model)


def load_embedder(
    model: str | Path | None, options: EngineOptions, pooling: Pooling | None = None
) -> Embedder:
    """Load an embedding model or reranker; with a `pooling`, any model as an embedding model.

    Raises ConfigError, ModelError, CapacityError, MissingDependencyError.
    """
    path, loading = _find(model, options), model_options(options).model
    what = f"{path.name} is loaded for embeddings"
    if loading.adapters:
        raise ConfigError(f"{what}, which cannot have adapters.", hint="Remove them.", setting="adapters")
    if loading.rpc:
        raise ConfigError(
            f"{what}, and only models that generate text are split over machines.",
            hint="Leave --rpc out (rpc in the settings file).",
            setting="rpc",
        )
    return backend_for(path).load_embedder(path, loading, pooling)


def _find(model: str | Path | None, options: EngineOptions) -> Path:
    loading = model_options(options)
    name = None if model is None else str(model)
    return resolve(name, models_dir(loading.cache_dir), loading.model.other_programs)
