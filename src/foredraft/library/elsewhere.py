"""The models of other programs on this computer, used in place."""

from __future__ import annotations

import os
from pathlib import Path

from foredraft.config import OtherPrograms
from foredraft.library.hub_cache import cached_models
from foredraft.library.llamacpp_cache import llamacpp_models
from foredraft.library.ollama import ollama_models
from foredraft.library.stored import StoredModel, describe_gguf, gguf_models
from foredraft.library.survey import ReportSkipped, Survey, no_report

OLLAMA_SERVICE = Path("/usr/share/ollama/.ollama/models")
"""Ollama's folder on Linux if it runs as a system service."""


def usual_places() -> OtherPrograms:
    """The default model folders of the programs."""
    home = _home()
    if home is None:
        return OtherPrograms()
    return OtherPrograms(
        ollama=(home / ".ollama/models", OLLAMA_SERVICE),
        lmstudio=(home / ".lmstudio/models", home / ".cache/lm-studio/models"),
        huggingface=(home / ".cache/huggingface/hub",),
        llamacpp=(home / ".cache/llama.cpp", home / "Library/Caches/llama.cpp"),
    )


def _home() -> Path | None:
    try:
        return Path.home()
    except RuntimeError:  # there is no home folder
        return None


def models_elsewhere(places: OtherPrograms, report: ReportSkipped = no_report) -> list[StoredModel]:
    """All models in these folders, unsorted. Missing folders count as empty; `report` is called with what was
    left out.
    """
    programs = (
        (ollama_models, places.ollama),
        (lmstudio_models, places.lmstudio),
        (cached_models, places.huggingface),
        (llamacpp_models, places.llamacpp),
    )
    found: list[StoredModel] = []
    for models_in, folders in programs:
        # One may be a link to the other, which LM Studio creates when it moves the folder.
        for folder in {os.path.realpath(folder): folder for folder in folders}.values():
            found += models_in(folder, report)
    return found


def lmstudio_models(folder: Path, report: ReportSkipped = no_report) -> list[StoredModel]:
    """The GGUF files in a folder of LM Studio: `publisher/repository/file`."""
    paths = gguf_models(Survey(folder, report).files(folder, deepest=4))
    return [describe_gguf(path, "lmstudio", _repository(path.relative_to(folder))) for path in paths]


def _repository(path: Path) -> str:
    return "/".join(path.parts[:2]) if len(path.parts) > 2 else ""
