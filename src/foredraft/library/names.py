"""Finds the model that a name or path refers to."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from foredraft.errors import ModelNotFoundError, quoted
from foredraft.library.catalogue import (
    PREFERRED_QUANTIZATIONS,
    default_model,
    install_default_model,
    list_models,
)
from foredraft.library.repository import CONFIG, SAFETENSORS, is_repository, repository_of
from foredraft.library.split import model_files
from foredraft.library.stored import OWN, StoredModel, gguf_models

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from foredraft.config import OtherPrograms


def how_to_get_one() -> str:
    """The hint for a missing model."""
    here = (
        "'foredraft models list' shows the models you have; 'foredraft models search WORD' and "
        "'foredraft models pull REPO' find and download one from the Hugging Face Hub."
    )
    if default_model() is not None:
        return here
    return f"{here} This installs a small one: {install_default_model()}"


LONGEST_SHOWN = 60
MOST_SHOWN = 12
"""Maximum models listed in an error."""

LIKE = 0.7
"""Minimum similarity of a name that counts as a misspelling of another."""


def resolve(name_or_path: str | None, folder: Path, others: OtherPrograms | None = None) -> Path:
    """The file of a model; the first file of a split model, or the folder of safetensors (its configuration,
    if GGUF files are in the same folder). The result resolves to itself.

    None is the bundled default. A path may be a file or a folder with one model; for safetensors, any of
    their files or the configuration. Anything else is the name of a model in `folder` (the models folder), of
    the bundled model, or of one in the folders of `others`, in any case: `owner/repository` or `repository`,
    either with `:QUANT` or `:safetensors`, the file's name with or without extension, Ollama's name, or an
    unambiguous beginning of any of these. Names in `folder` take precedence. For a repository pulled in
    several quantisations the preferred one is selected, and a GGUF before safetensors. Raises
    ModelNotFoundError, with similar names or all matches.
    """
    if name_or_path is None:
        default = default_model()
        if default is None:
            raise ModelNotFoundError(
                "No model was named, and no default model is installed.", hint=how_to_get_one()
            )
        return default
    if not name_or_path.strip():
        raise ModelNotFoundError("The name of the model is empty.", hint=how_to_get_one())
    path = as_path(name_or_path)
    if path.is_file():
        repository = repository_of(path)
        return model_files(path)[0] if repository is None else _safetensors(repository)
    models = list_models(folder, others)
    matches = models_called(name_or_path, models)
    if matches:
        found = _one(name_or_path, matches)
        return _safetensors(found.path) if found.format == SAFETENSORS else found.path
    # After the names, so that a folder with a model's name does not hide the model.
    if path.is_dir():
        return _in_folder(path)
    raise not_found(name_or_path, models)


def as_path(name: str) -> Path:
    """The path that a name may be. Raises ModelNotFoundError if it is not a possible path."""
    try:
        path = Path(name).expanduser()
        path.is_file()
    except (OSError, RuntimeError, ValueError) as error:  # too long, unknown user, a NUL character
        why = (error.strerror if isinstance(error, OSError) else None) or str(error).rstrip(".")
        shown = name if len(name) <= LONGEST_SHOWN else name[:LONGEST_SHOWN] + "…"
        raise ModelNotFoundError(
            f"There is no model {quoted(shown)}: {why}.", hint=how_to_get_one()
        ) from None
    return path


def models_called(name: str, models: Sequence[StoredModel], *, whole: bool = False) -> list[StoredModel]:
    """The models with this name, or whose names start with it unless it must be `whole`."""
    wanted = name.casefold()
    exact = [model for model in models if wanted in (key.casefold() for key in model.answers_to())]
    if exact or whole:
        return [model for model in exact if model.source in OWN] or exact
    return [model for model in models if any(key.casefold().startswith(wanted) for key in model.answers_to())]


def _one(name: str, matches: Sequence[StoredModel]) -> StoredModel:
    if len(matches) > 1 and len({model.repository for model in matches}) == 1 and matches[0].repository:
        matches = [model for model in matches if model.format != SAFETENSORS] or matches
        by_preference = ([m for m in matches if m.quantization == q] for q in PREFERRED_QUANTIZATIONS)
        matches = next(filter(None, by_preference), matches)
    one_file = len({model.path for model in matches}) == 1  # Ollama may have two names for one file
    one_model = len({(model.name, model.size_bytes) for model in matches}) == 1  # that two programs store
    if one_file or one_model:
        return matches[0]
    raise ambiguous(name, matches)


def ambiguous(name: str, matches: Sequence[StoredModel]) -> ModelNotFoundError:
    """The error for a name of several models."""
    names = {model.name for model in matches}
    if len(names) < len(matches):
        names = {str(model.path) for model in matches}
    shown = sorted(names)[:MOST_SHOWN]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return ModelNotFoundError(
        f"{quoted(name)} could be any of {len(names)} models: {_listing(shown)}{more}.",
        hint="Use one of these names.",
    )


def _in_folder(folder: Path) -> Path:
    models = gguf_models(sorted(folder.iterdir()))
    if not models and is_repository(folder):
        return _safetensors(folder)
    if not models:
        raise ModelNotFoundError(
            f"The folder {folder} has no GGUF model, and no {CONFIG} with *.safetensors.",
            hint=how_to_get_one(),
        )
    if len(models) > 1:
        raise ModelNotFoundError(
            f"The folder {folder} contains {len(models)} models: {_listing(path.name for path in models)}.",
            hint="Name one of the files.",
        )
    return models[0]


def _safetensors(folder: Path) -> Path:
    """The folder's absolute path, which cannot be confused with a model's name when it is resolved again."""
    folder = folder.absolute()
    if folder.name == "..":
        folder = folder.resolve()
    return folder / CONFIG if gguf_models(folder.iterdir()) else folder


def not_found(name: str, models: Sequence[StoredModel]) -> ModelNotFoundError:
    """The error for an unknown name or path, with similar names."""
    path = as_path(name)
    if _looks_like_path(name):
        siblings = _siblings(path)
        named = [*gguf_models(siblings), *filter(is_repository, siblings)]
        near = [str(path.parent / match) for match in _near(path.name, [[file.name] for file in named])]
        kind = "file" if path.suffix.lower() == ".gguf" else "file or folder"
        message = f"There is no {kind} {path}."
        if path.exists():  # a device or a pipe: models need random access
            message = f"{path} is neither a file nor a folder."
            near = [each for each in near if each != str(path)]
    else:
        near = _near(name, [model.answers_to() for model in models])
        message = f"There is no model {quoted(name)} on this computer."
    if near:
        message += f" Did you mean {_listing(near, joiner=' or ')}?"
    return ModelNotFoundError(message, hint=how_to_get_one())


def _siblings(path: Path) -> list[Path]:
    """What lies in the folder of a path; nothing where that cannot be listed."""
    try:
        return sorted(path.parent.iterdir())
    except OSError:
        return []


def _near(name: str, models: Iterable[Sequence[str]]) -> list[str]:
    """For each model the name most similar to `name`, complete or by its beginning; the best three."""
    wanted = name.casefold()

    def likeness(candidate: str) -> float:
        texts = (candidate.casefold(), candidate[: len(name) + 1].casefold())
        return max(difflib.SequenceMatcher(None, wanted, text).ratio() for text in texts)

    best = (max((likeness(candidate), candidate) for candidate in names) for names in models)
    return [candidate for rating, candidate in sorted(best, reverse=True)[:3] if rating >= LIKE]


def _looks_like_path(name: str) -> bool:
    separators = name.count("/") + name.count(os.sep) * (os.sep != "/")
    return name.lower().endswith(".gguf") or name.startswith((".", "~", os.sep)) or separators > 1


def _listing(names: Iterable[str], joiner: str = ", ") -> str:
    return joiner.join(names)
