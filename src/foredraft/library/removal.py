"""Deleting a model from the models folder, and saying why not where it is not ours to delete."""

from __future__ import annotations

import glob
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from foredraft.errors import ConfigError, ForedraftError, ModelNotFoundError
from foredraft.library.catalogue import DEFAULT_PACKAGE, list_models
from foredraft.library.names import ambiguous, as_path, models_called, not_found
from foredraft.library.repository import SAFETENSORS
from foredraft.library.split import model_files
from foredraft.library.stored import OWN, StoredModel

if TYPE_CHECKING:
    from foredraft.config import OtherPrograms


@dataclass(frozen=True, slots=True)
class Removal:
    """What goes with a model: `files` (links among them are deleted themselves, not what they point to),
    `size_bytes` what that frees. `folder` is the models folder, which stays.
    """

    model: StoredModel
    files: tuple[Path, ...]
    size_bytes: int
    folder: Path

    def carry_out(self) -> None:
        """Delete the files, and the folders that are empty then. Raises ConfigError where that fails."""
        try:
            for file in self.files:
                file.unlink(missing_ok=True)
        except OSError as error:
            raise ConfigError(
                f"{error.filename} cannot be deleted: {error.strerror or error}.",
                hint="What was deleted before it is gone; the same command goes on.",
            ) from None
        with suppress(OSError):  # not empty
            for place in self.files[0].relative_to(self.folder).parents if self.files else ():
                if place.parts:
                    (self.folder / place).rmdir()


def to_remove(name: str, folder: Path, others: OtherPrograms) -> Removal:
    """What goes with the model of a name, whole, or of a path, in `folder` (the models folder).

    Raises ModelNotFoundError for no model or several, ConfigError for one that is not in the folder.
    """
    models = list_models(folder, others)
    path = as_path(name).absolute()
    matches = models_called(name, models, whole=True) or [m for m in models if _lies_at(m, path)]
    if not matches and path.exists():
        raise ConfigError(
            f"{path} is no model in {folder}, and Foredraft deletes nothing else.", hint="Delete it yourself."
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
    files = tuple(_files(model))
    size = sum(file.stat().st_size for file in files if file.is_file() and not file.is_symlink())
    return Removal(model, files, size, folder)


def _lies_at(model: StoredModel, path: Path) -> bool:
    files = model_files(model.path) if model.format != SAFETENSORS else (model.path,)
    return path in files


def _files(model: StoredModel) -> list[Path]:
    """The model's own files, and what an interrupted download of them left."""
    if model.format == SAFETENSORS:  # GGUF files may lie beside them
        return [
            path
            for path in sorted(model.path.iterdir())
            if not path.name.lower().endswith(".gguf") and (path.is_symlink() or not path.is_dir())
        ]
    found: list[Path] = []
    for file in model_files(model.path):
        found += [file] if file.is_file() or file.is_symlink() else []
        name = glob.escape(file.name)
        found += [*file.parent.glob(f".{name}.*.part"), *file.parent.glob(f".{name}.lock")]
    return found


def _not_ours(model: StoredModel) -> ForedraftError:
    hints = {
        "bundled": f"It goes with the package: pip uninstall {DEFAULT_PACKAGE.replace('_', '-')}",
        "ollama": f"Ollama deletes it: ollama rm {model.label}",
        "lmstudio": f"Delete it in LM Studio, or yourself: {model.path}",
        "huggingface": f"The Hub's own library deletes it: hf cache rm model/{model.repository}",
    }
    whose = "comes with a Python package" if model.source == "bundled" else "belongs to another program"
    return ConfigError(
        f"{model.name} {whose} and is not Foredraft's to delete.", hint=hints.get(model.source)
    )


def _behind_a_link(model: StoredModel, link: Path) -> ForedraftError:
    return ConfigError(
        f"{model.name} lies in {link.resolve()}, where {link} points to: it is not Foredraft's to delete.",
        hint=f"Without the link it is no longer listed: {link}",
    )
