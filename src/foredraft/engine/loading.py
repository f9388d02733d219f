"""From a model's name and options to what engines are made of: the model, and what may be kept of it.

Also Python's garbage collector: a full collection looks at every object in the process, tens of thousands
after a model was loaded. 11 to 24 ms were measured once in one or two thousand rounds, as long as five rounds
of a 135M model. What is there once a model is loaded mostly stays, so `freeze_heap` leaves it out.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, Self, runtime_checkable

from foredraft.backends.part import split
from foredraft.config import ModelOptions, Speculation
from foredraft.engine.heads import with_heads
from foredraft.engine.options import EngineOptions, LoadOptions, model_options
from foredraft.engine.prefix.disk import PrefixDisk, open_disk
from foredraft.engine.profile_store import ProfileStore, profiles_dir
from foredraft.engine.speculation import PlannerStore
from foredraft.errors import ConfigError, ForedraftError
from foredraft.library import models_dir, resolve
from foredraft.protocols import Model
from foredraft.registry import backend_for


@dataclass(frozen=True, slots=True)
class Kept:
    """What an engine may keep between runs, and the options its model was loaded with.

    `store`: the folder of past outputs; `planner_store`: what is stored of costs and acceptance; `disk`: the
    KV cells of prefixes. None where nothing may be kept, as with a model that was made by hand. `unwatched`:
    why the model was loaded without what a head reads, though a head was to draft; "" if that is not so.
    `adapter`: that of requests that name none.
    """

    options: ModelOptions = field(default_factory=ModelOptions)
    store: Path | None = None
    planner_store: PlannerStore | None = None
    disk: PrefixDisk | None = None
    unwatched: str = ""
    adapter: str = ""

    @classmethod
    def of(cls, model: Model, options: LoadOptions, unwatched: str) -> Self:
        """Opens what is there. Raises ConfigError where the folder of prefixes cannot be used."""
        profiles = ProfileStore(profiles_dir(options.cache_dir))
        adapter = model.adapters.get(options.adapter, "")
        return cls(
            options.model,
            options.cache_dir / "store" if options.remember else None,
            PlannerStore(profiles, model.info, adapter, remember=options.remember),
            open_disk(model, options.cache_dir, options.prefix_bytes),
            unwatched,
            options.adapter,
        )


def load_parts(
    model: str | Path | None, settings: Sequence[Speculation], options: EngineOptions
) -> tuple[list[Model], LoadOptions, str]:
    """(a model for an engine of each setting, the options, checked, and `Kept.unwatched`). The models share
    the weights, and each has the sequences that the options say; those of settings without a head keep no
    hidden states, if the backend can do so. Raises ConfigError, ModelError, CapacityError,
    MissingDependencyError.
    """
    if not settings:
        raise ConfigError("Engines are loaded for one speculation setting at least.")
    loading = model_options(options)
    name = None if model is None else str(model)
    path = resolve(name, models_dir(loading.cache_dir), loading.model.other_programs)
    wanted = with_heads(path, settings, loading.model)
    wanted = replace(wanted, sequences=len(settings) * loading.model.sequences)
    loaded, unwatched = _with_or_without_heads(path, wanted)
    parts = split(loaded, len(settings))
    if loaded.capabilities.features and len(parts) > 1:
        plain = [not with_heads(path, [setting], loading.model).watch for setting in settings]
        _replace_parts(parts, loaded, plain)
    return parts, loading, unwatched


@runtime_checkable
class _Sharing(Protocol):
    """A model whose weights another can compute with."""

    def unwatched(self, sequences: int) -> Model | None: ...


def _replace_parts(parts: list[Model], loaded: Model, plain: Sequence[bool]) -> None:
    """Replace the parts that are to be `plain` by those of a model that keeps no hidden states: what is
    compared with a head must not pay for it. That model has as many sequences, because forwards may depend on
    their number.
    """
    if not any(plain) or not isinstance(loaded, _Sharing):
        return
    try:
        other = loaded.unwatched(loaded.capabilities.sequences)
    except ForedraftError:  # for lack of memory
        return
    except BaseException:
        loaded.close()
        raise
    if other is None:
        return
    for place, part in enumerate(split(other, len(parts))):
        if plain[place]:
            parts[place].close()
            parts[place] = part
        else:
            part.close()


def _with_or_without_heads(path: Path, wanted: ModelOptions) -> tuple[Model, str]:
    """(the model, `Kept.unwatched`). What a head reads takes memory, functions and formats that the model
    alone does not need, and no head is worth a model that does not load.
    """
    backend, unwatched = backend_for(path), ""
    if wanted.watch:
        try:
            return backend.load(path, wanted), ""
        except ForedraftError as error:
            unwatched = f"the model cannot be loaded with what a head reads: {error.message.splitlines()[0]}"
    # Here, because the error above holds on to what was loaded until then.
    return backend.load(path, replace(wanted, watch=(), heads=())), unwatched


def freeze_heap() -> None:
    """Collect what is garbage now, and leave the rest out of later collections, of this whole process.

    Called after each model that is loaded. What was left out before is looked at again once: a model that was
    unloaded since is garbage by now. Only our own programs call it; other programs decide for themselves
    (`gc.freeze`).
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def thaw_heap() -> None:
    """Have later collections look at everything again, after a model was unloaded: parts of it, its tensors
    included, may be garbage that only they find.
    """
    gc.unfreeze()
