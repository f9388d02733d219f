"""Selects the files of a safetensors model in a repository on the Hub. None of them can run code.

Pickled weights (`*.bin`, `*.pt`) and a repository's own code (`*.py`) are not downloaded: loading them would
execute a stranger's code.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from foredraft.errors import ModelFormatError, ModelNotFoundError
from foredraft.library.repository import CONFIG, INDEX, WEIGHTS, indexed
from foredraft.library.transfer import RemoteFile, Report, Snapshot, check_space, fetch
from foredraft.registry import missing_dependency

if TYPE_CHECKING:
    from collections.abc import Sequence

BESIDES = (
    CONFIG,
    *("generation_config.json", "chat_template.jinja", "chat_template.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "merges.txt", "vocab.txt", "tekken.json"),
    *("preprocessor_config.json", "processor_config.json"),  # of models that see
    *("tokenizer.model", "spiece.model", "sentencepiece.bpe.model"),
)
"""Files that transformers reads besides the weights, if the repository has them."""

_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def has_safetensors(snapshot: Snapshot) -> bool:
    """Whether the repository has safetensors where transformers looks for them."""
    return any(file.name in (WEIGHTS, INDEX) for file in snapshot.files)


def has_pickles(snapshot: Snapshot) -> bool:
    """Whether it has pickled weights."""
    return any(file.name.endswith(_PICKLES) for file in snapshot.files)


def check_installed(repository: str) -> None:
    """Raises MissingDependencyError if the model could not run here, before gigabytes are downloaded."""
    for module in ("torch", "transformers"):
        if find_spec(module) is None:
            raise missing_dependency(module, f"{repository} holds safetensors, and running them")


def choose_safetensors(snapshot: Snapshot, target: Path) -> list[RemoteFile]:
    """The model's files, the small ones first. Raises ModelNotFoundError, ModelFormatError.

    The index of a model with several files, which lists them, is downloaded to the folder `target`.
    """
    files = {file.name: file for file in snapshot.files}
    if not has_safetensors(snapshot):
        raise ModelNotFoundError(
            f"The repository {snapshot.repository} has no weights as safetensors{_instead(snapshot)}.",
            hint=f"transformers requires {WEIGHTS} or {INDEX}.",
        )
    if CONFIG not in files:
        raise ModelFormatError(
            f"The repository {snapshot.repository} has no {CONFIG}, so it is not a transformers model.",
            hint="An adapter or a part of a model cannot run alone.",
        )
    if WEIGHTS in files:
        weights = [files[WEIGHTS]]
    else:
        weights = [files[INDEX], *_shards(snapshot, files[INDEX], target)]
    return [*(files[name] for name in BESIDES if name in files), *weights]


def _shards(snapshot: Snapshot, index: RemoteFile, target: Path) -> list[RemoteFile]:
    path = target / index.name
    check_space([index], [path])
    fetch(snapshot, index, path, Report(None, 0, index.size, path.name))
    names = indexed(path)
    files = {file.name: file for file in snapshot.files if file.name.endswith(".safetensors")}
    missing = [name for name in names if name not in files]
    if missing:
        raise ModelFormatError(
            f"The repository {snapshot.repository} is incomplete: it lacks {_some(missing)}.",
            hint="Only its owner can complete it. Look for another repository with the same model.",
        )
    return [files[name] for name in names]


def remove_stale(target: Path, wanted: Sequence[RemoteFile]) -> None:
    """Delete weights of an earlier version, which transformers would load."""
    names = {file.name for file in wanted}
    for name in (WEIGHTS, INDEX):
        if name not in names:
            (target / name).unlink(missing_ok=True)


def _instead(snapshot: Snapshot) -> str:
    return ": they are pickles, which could run code and are not downloaded" if has_pickles(snapshot) else ""


def _some(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
