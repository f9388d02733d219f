"""Getting models from the Hugging Face Hub: which files, and where to."""

from __future__ import annotations

from json import JSONDecodeError
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING

from foretoken.errors import BackendError, ConfigError, ModelNotFoundError
from foretoken.library.catalogue import PREFERRED_QUANTIZATIONS, is_model_name, quantization_of
from foretoken.library.hub_errors import translated
from foretoken.library.split import is_later_part, split_stem
from foretoken.library.transfer import TIMEOUT_S, Progress, RemoteFile, Report, Snapshot, check_space, fetch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from huggingface_hub.hf_api import RepoSibling


def pull(
    repository: str,
    quantization: str | None = None,
    *,
    folder: Path,
    progress: Progress | None = None,
    endpoint: str | None = None,
    token: str | None = None,
) -> Path:
    """Download a GGUF model of `repository` ("owner/name") into `folder` (the models folder).

    `quantization` is one ("Q4_0"), or the name of a file; None takes the preferred one of those there are, or
    the only one. Files are checked against the Hub's digest and appear only when they are complete; the same
    call after an interruption continues. `endpoint` and `token` None mean the Hub library's own settings.
    Returns the (first) file. Raises ModelNotFoundError, ConfigError, CapacityError (no disk space),
    BackendError (no connection, damaged data), MissingDependencyError.
    """
    with translated(repository):
        snapshot = _look_up(repository, endpoint, token)
        wanted = _choose(snapshot, quantization)
        target = folder.joinpath(*repository.split("/"))
        paths = [target / file.name for file in wanted]
        total = sum(file.size for file in wanted)
        check_space(wanted, paths)
        before = 0
        for file, path in zip(wanted, paths, strict=True):
            report = Report(progress, before, total, path.name)
            fetch(snapshot, file, path, report)
            before += file.size
        return paths[0]


def _look_up(repository: str, endpoint: str | None, token: str | None) -> Snapshot:
    from huggingface_hub import HfApi

    if repository.count("/") != 1 or not all(repository.split("/")):
        raise ConfigError(
            f"{repository!r} is not the name of a repository.",
            hint="Give it as OWNER/NAME or OWNER/NAME:QUANT.",
        )
    api = HfApi(endpoint=endpoint, token=token)
    try:
        info = api.model_info(repository, files_metadata=True, timeout=TIMEOUT_S)
    except (KeyError, TypeError, JSONDecodeError) as exc:
        raise BackendError(
            f"{api.endpoint} does not answer as the Hub does.", hint="Check HF_ENDPOINT, and your proxy."
        ) from exc
    files = tuple(_file(sibling) for sibling in info.siblings or () if _is_wanted(sibling.rfilename))
    return Snapshot(repository, info.sha or "main", files, endpoint, token)


def _is_wanted(name: str) -> bool:
    """Whether it is a model's file, under a name that stays below the folder it is put into."""
    path = PureWindowsPath(name)  # the stricter reading: both kinds of slashes, and drives
    return is_model_name(name) and ".." not in path.parts and not path.anchor


def _file(sibling: RepoSibling) -> RemoteFile:
    digest = sibling.lfs.sha256 if sibling.lfs else sibling.blob_id or ""
    return RemoteFile(sibling.rfilename, sibling.size or 0, digest)


def _choose(snapshot: Snapshot, quantization: str | None) -> list[RemoteFile]:
    """The files of the model that is meant, in order."""
    models = [file for file in snapshot.files if not is_later_part(Path(file.name).stem)]
    if not models:
        raise ModelNotFoundError(
            f"The repository {snapshot.repository} has no GGUF file.",
            hint="Look for one whose name ends in -GGUF: most models have been converted by someone.",
        )
    first = _preferred(snapshot, models) if quantization is None else _named(snapshot, models, quantization)
    stem = split_stem(Path(first.name).stem)
    parts = [file for file in snapshot.files if split_stem(Path(file.name).stem) == stem]
    return sorted(
        (file for file in parts if Path(file.name).parent == Path(first.name).parent),
        key=lambda file: file.name,
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
    names = (quantization_of(Path(model.name).stem) or Path(model.name).name for model in models)
    choices = ", ".join(dict.fromkeys(names))
    return f"It has: {choices}. Name one: foretoken models pull {snapshot.repository}:QUANT"
