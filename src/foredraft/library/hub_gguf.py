"""Selects the files of a GGUF model in a repository on the Hub."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from foredraft.errors import ModelNotFoundError
from foredraft.library.catalogue import PREFERRED_QUANTIZATIONS
from foredraft.library.hub_safetensors import has_pickles, has_safetensors
from foredraft.library.mmproj import fitting
from foredraft.library.repository import SAFETENSORS
from foredraft.library.split import is_later_part, split_stem
from foredraft.library.stored import is_model_name, quantization_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from foredraft.library.transfer import RemoteFile, Snapshot


def gguf_files(snapshot: Snapshot) -> list[RemoteFile]:
    """The models, each by its first file."""
    return [
        file
        for file in snapshot.files
        if is_model_name(file.name) and not is_later_part(Path(file.name).stem)
    ]


def choose_gguf(snapshot: Snapshot, quantization: str | None) -> list[RemoteFile]:
    """The files of the selected model, in order. Raises ModelNotFoundError."""
    models = gguf_files(snapshot)
    if not models:
        raise _no_gguf(snapshot)
    first = _preferred(snapshot, models) if quantization is None else _named(snapshot, models, quantization)
    stem = split_stem(Path(first.name).stem)
    parts = [file for file in snapshot.files if _is_part(file.name, stem)]
    return sorted(
        (file for file in parts if Path(file.name).parent == Path(first.name).parent),
        key=lambda file: file.name,
    )


def vision_of(snapshot: Snapshot, model: RemoteFile) -> list[RemoteFile]:
    """The file of vision (mmproj) that goes with a model, by its first file; none if there is none."""
    named = {Path(file.name): file for file in snapshot.files}
    found = fitting(Path(model.name), sorted(named))
    return [] if found is None else [named[found]]


def _is_part(name: str, stem: str) -> bool:
    return is_model_name(name) and split_stem(Path(name).stem) == stem


def _no_gguf(snapshot: Snapshot) -> ModelNotFoundError:
    name = snapshot.repository
    if has_safetensors(snapshot):
        return ModelNotFoundError(
            f"The repository {name} has no GGUF file, and only those have quantisations.",
            hint=f"It has safetensors, for PyTorch: foredraft models pull {name}:{SAFETENSORS}",
        )
    pickles = " Its weights are pickles, which could run code and are not downloaded."
    return ModelNotFoundError(
        f"The repository {name} has no GGUF file and no safetensors."
        + (pickles if has_pickles(snapshot) else ""),
        hint="Look for a converted model: its name usually ends in -GGUF.",
    )


def _preferred(snapshot: Snapshot, models: Sequence[RemoteFile]) -> RemoteFile:
    if len(models) == 1:
        return models[0]
    for quantization in PREFERRED_QUANTIZATIONS:
        for model in models:
            if quantization_of(Path(model.name).stem) == quantization:
                return model
    raise ModelNotFoundError(
        f"The repository {snapshot.repository} has several models and none of the usual quantisations.",
        hint=_choices(snapshot, models),
    )


def _named(snapshot: Snapshot, models: Sequence[RemoteFile], wanted: str) -> RemoteFile:
    key = wanted.casefold()
    for model in models:
        path = Path(model.name)
        names = (quantization_of(path.stem), path.name, path.stem, split_stem(path.stem), model.name)
        if key in (name.casefold() for name in names):
            return model
    raise ModelNotFoundError(
        f"The repository {snapshot.repository} has no {wanted}.", hint=_choices(snapshot, models)
    )


def _choices(snapshot: Snapshot, models: Sequence[RemoteFile]) -> str:
    names = [quantization_of(Path(model.name).stem) or Path(model.name).name for model in models]
    names += [SAFETENSORS] if has_safetensors(snapshot) else []
    choices = ", ".join(dict.fromkeys(names))
    return f"It has: {choices}. Name one: foredraft models pull {snapshot.repository}:QUANT"
