"""Deletes a model from the models folder, or explains why it must not be deleted."""

from __future__ import annotations

import glob
import re
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from foredraft.errors import ConfigError, ForedraftError, ModelNotFoundError
from foredraft.library.catalogue import DEFAULT_PACKAGE, list_models
from foredraft.library.hub_safetensors import BESIDES
from foredraft.library.mmproj import find_mmproj, fitting
from foredraft.library.names import ambiguous, as_path, models_called, not_found
from foredraft.library.repository import INDEX, SAFETENSORS, SUFFIX
from foredraft.library.split import model_files
from foredraft.library.stored import OWN, StoredModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from foredraft.config import OtherPrograms

_LEFT = re.compile(r"\.(.+)\.(?:[0-9a-f]+\.part|lock)")
"""Suffixes of an interrupted download: see `transfer`."""

_USUAL = ("tokenizer*.json", "vocab.*", "chat_template*", "*.safetensors.index.json")
"""Further files of safetensors models, from sources other than the Hub."""


@dataclass(frozen=True, slots=True)
class Removal:
    """Files to delete with a model: `files` (of links only the links themselves) and their total
    `size_bytes`. `vision`: the file of vision (mmproj) among them. `rest`: other files in the model's folder,
    which are kept. `folder`: the models folder, which is kept.
    """

    model: StoredModel
    files: tuple[Path, ...]
    rest: tuple[Path, ...]
    size_bytes: int
    folder: Path
    vision: Path | None = None

    def carry_out(self) -> None:
        """Delete the files, and folders that become empty. Raises ConfigError if that fails."""
        try:
            for file in self.files:
                file.unlink(missing_ok=True)
        except OSError as error:
            raise ConfigError(
                f"{error.filename} cannot be deleted: {error.strerror or error}.",
                hint="The files before it have been deleted; the same command continues.",
            ) from None
        with suppress(OSError):  # not empty
            for place in self.files[0].relative_to(self.folder).parents if self.files else ():
                if place.parts:
                    (self.folder / place).rmdir()


def to_remove(names: Sequence[str], folder: Path, others: OtherPrograms) -> list[Removal]:
    """Determine what to delete for models in `folder` (the models folder), each given by its full name or a
    path. A file of vision goes with the last of those that use it, if no other model does.

    Raises ModelNotFoundError for none or several models of a name, ConfigError for one outside the folder.
    """
    models = list_models(folder, others)
    chosen = {model.path: model for model in (_removable(name, models, folder) for name in names)}
    removals = []
    for path, model in chosen.items():
        removals.append(_removal(model, models, folder))
        models = [one for one in models if one.path != path]
    return removals


def _removable(name: str, models: Sequence[StoredModel], folder: Path) -> StoredModel:
    """The model of a name, if it may be deleted. Raises as `to_remove`."""
    path = as_path(name).absolute()
    matches = models_called(name, models, whole=True) or [m for m in models if _lies_at(m, path)]
    if not matches and path.exists():
        raise ConfigError(
            f"{path} is not a model in {folder}; nothing else is deleted.", hint="Delete it yourself."
        )
    if not matches:
        missing = not_found(name, models_called(name, models) or models)
        raise ModelNotFoundError(missing.message, hint="'foredraft models list' shows the names.")
    if len({model.path for model in matches}) > 1:
        raise ambiguous(name, matches)
    model = matches[0]
    if model.source not in OWN or model.source == "bundled":
        raise _not_ours(model)
    for parent in model.path.relative_to(folder).parents:
        if (folder / parent).is_symlink() and parent.parts:
            raise _behind_a_link(model, folder / parent)
    if model.format == SAFETENSORS and model.path.is_symlink():
        raise _behind_a_link(model, model.path)
    return model


def _removal(model: StoredModel, models: Sequence[StoredModel], folder: Path) -> Removal:
    vision = _own_vision(model, models, folder)
    files = (*_files(model), *(_with_remains(vision) if vision is not None else ()))
    rest = tuple(_rest(model, files))
    size = sum(file.stat().st_size for file in files if file.is_file() and not file.is_symlink())
    return Removal(model, files, rest, size, folder, vision if vision in files else None)


def _lies_at(model: StoredModel, path: Path) -> bool:
    files = model_files(model.path) if model.format != SAFETENSORS else (model.path,)
    return path in files


def _files(model: StoredModel) -> list[Path]:
    """The model's own files, and the remains of interrupted downloads of them."""
    if model.format == SAFETENSORS:
        return [path for path in sorted(model.path.iterdir()) if _belongs(path)]
    return [path for file in model_files(model.path) for path in _with_remains(file)]


def _with_remains(file: Path) -> list[Path]:
    """A file, if it is there, and the remains of interrupted downloads of it."""
    name = glob.escape(file.name)
    here = [file] if file.is_file() or file.is_symlink() else []
    return [*here, *file.parent.glob(f".{name}.*.part"), *file.parent.glob(f".{name}.lock")]


def _own_vision(model: StoredModel, models: Sequence[StoredModel], folder: Path) -> Path | None:
    """The file of vision that only this model has, also one that was downloaded in part."""
    if model.format == SAFETENSORS:
        return None
    vision = _vision(model.path)
    if vision is None or not vision.is_relative_to(folder):
        return None
    others = (one.path for one in models if one.path != model.path and one.format != SAFETENSORS)
    return None if any(_vision(one) == vision for one in others) else vision


def _vision(model: Path) -> Path | None:
    """The file of a model's vision: there, or begun."""
    begun = (match[1] for path in model.parent.glob(".*") if (match := _LEFT.fullmatch(path.name)))
    return find_mmproj(model) or fitting(model, sorted(model.with_name(name) for name in begun))


def _belongs(path: Path) -> bool:
    """Whether it is a file of a safetensors model, or the remains of its download."""
    if path.is_dir() and not path.is_symlink():
        return False
    left = _LEFT.fullmatch(path.name)
    name = left[1] if left else path.name
    return name in {*BESIDES, INDEX} or name.endswith(SUFFIX) or any(fnmatchcase(name, one) for one in _USUAL)


def _rest(model: StoredModel, files: Sequence[Path]) -> list[Path]:
    """Other files in the folder of a safetensors model, except for other models."""
    if model.format != SAFETENSORS:
        return []
    mine = set(files)
    return [path for path in sorted(model.path.iterdir()) if path not in mine and ".gguf" not in path.name]


def _not_ours(model: StoredModel) -> ForedraftError:
    hints = {
        "bundled": f"Uninstall its package: pip uninstall {DEFAULT_PACKAGE.replace('_', '-')}",
        "ollama": f"Delete it with Ollama: ollama rm {model.label}",
        "lmstudio": f"Delete it in LM Studio, or by hand: {model.path}",
        "huggingface": f"Delete it with the Hub's own library: hf cache rm model/{model.repository}",
        "llamacpp": f"Delete it by hand: {model.path}",
    }
    whose = "comes with a Python package" if model.source == "bundled" else "belongs to another program"
    return ConfigError(
        f"{model.name} {whose}, so Foredraft does not delete it.", hint=hints.get(model.source)
    )


def _behind_a_link(model: StoredModel, link: Path) -> ForedraftError:
    return ConfigError(
        f"{model.name} is in {link.resolve()}, to which {link} links, so Foredraft does not delete it.",
        hint=f"Delete the link to remove it from the list: {link}",
    )
