"""Find drafters and backends by name. Built-ins and plugins register alike: entry points, imported on first
use.

A package adds a drafter with::

    [project.entry-points."foredraft.drafters"]
    my-drafter = "my_package:create"        # a protocols.DrafterFactory

and a backend with the group `foredraft.backends`, naming a `protocols.Backend` object.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import cast

from foredraft import installation
from foredraft.config import AUTO, OFF, Speculation, Stage
from foredraft.errors import (
    ConfigError,
    MissingDependencyError,
    ModelFormatError,
    SpeculationStringError,
    quoted,
)
from foredraft.protocols import Backend, Drafter, DrafterContext, DrafterFactory

DRAFTERS = "foredraft.drafters"
BACKENDS = "foredraft.backends"
EXTRAS = {
    "gguf": "draft",
    "huggingface_hub": "hub",
    "xllamacpp": "llamacpp",
    "matplotlib": "bench",
    "torch": "torch",
    "transformers": "torch",
}

_added: dict[str, DrafterFactory] = {}


@cache
def _installed(group: str) -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=group)}


def register_drafter(name: str, factory: DrafterFactory) -> None:
    """Add a drafter for this process, without packaging it. Raises ConfigError if the name is taken."""
    if name in drafter_names() or name in (AUTO, OFF):
        raise ConfigError(f"There is already a drafter named {quoted(name)}.")
    _added[name] = factory


def unregister_drafter(name: str) -> None:
    """Undo `register_drafter`."""
    _added.pop(name, None)


def drafter_names() -> list[str]:
    """All drafter names that are valid in a speculation string."""
    return sorted({*_installed(DRAFTERS), *_added})


def drafter_factory(name: str) -> DrafterFactory:
    """The factory registered under a name. Raises SpeculationStringError for an unknown name."""
    if name in _added:
        return _added[name]
    entry = _installed(DRAFTERS).get(name)
    if entry is None:
        raise SpeculationStringError(
            f"There is no drafter named {quoted(name)}.",
            hint=f"Valid names: {AUTO}, {OFF}, {', '.join(drafter_names())}.",
        )
    return cast("DrafterFactory", entry.load())


def check_speculation(speculation: Speculation) -> None:
    """Check that every named drafter exists and takes its options, as far as that needs no model. Raises
    SpeculationStringError for the first that does not.
    """
    for stage in speculation.stages:
        check = getattr(drafter_factory(stage.name), "check_options", None)  # config.checked_by
        if check is not None:
            check(stage.options)


def create_drafter(stage: Stage, context: DrafterContext) -> Drafter:
    """Create the stage's drafter. Raises what its factory raises (protocols.DrafterFactory)."""
    return drafter_factory(stage.name)(context, stage.options)


def backend_for(path: Path) -> Backend:
    """The backend that accepts the file. Raises ModelFormatError, MissingDependencyError."""
    missing: list[str] = []
    for name, entry in sorted(_installed(BACKENDS).items()):
        backend = cast("Backend", entry.load())
        try:
            if backend.accepts(path):
                return backend
        except MissingDependencyError:
            missing.append(name)
    if missing:
        raise missing_dependency("xllamacpp", f"Loading {path.name}")
    raise ModelFormatError(
        f"{path} is not a model that any installed backend can read.",
        hint="Foredraft reads GGUF files, and folders with config.json and *.safetensors; 'foredraft doctor' "
        "lists the installed backends.",
    )


def missing_dependency(module: str, purpose: str, *, extra: str = "") -> MissingDependencyError:
    """The error for an optional dependency that is not installed, with the command that installs it: with an
    extra of its own, or that of the purpose.
    """
    command = installation.add_extra(extra or EXTRAS.get(module, module))
    hint = f"Install it with: {command}"
    if module == "xllamacpp" and (here := installation.platform_without_llama_cpp()):
        hint = (
            f"There is no compiled one for {here}. Build llama.cpp and name its library with --llama-library "
            f"(documentation: llama-library). Or, where there are compilers, let pip compile it: {command}"
        )
    return MissingDependencyError(
        f"{purpose} needs the Python package {quoted(module)}, which is not installed.", hint=hint
    )
