"""Downloading models from the Hugging Face Hub: choosing the files and their destination."""

from __future__ import annotations

import re
from dataclasses import replace
from json import JSONDecodeError
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING

from foredraft.errors import BackendError, ConfigError, quoted
from foredraft.library.hub_errors import translated
from foredraft.library.hub_gguf import choose_gguf, gguf_files, vision_of
from foredraft.library.hub_safetensors import (
    check_installed,
    choose_safetensors,
    has_safetensors,
    remove_stale,
)
from foredraft.library.repository import SAFETENSORS
from foredraft.library.transfer import (
    TIMEOUT_S,
    Progress,
    RemoteFile,
    Report,
    Snapshot,
    Stop,
    check_space,
    fetch,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from huggingface_hub.hf_api import RepoSibling


def pull(
    repository: str,
    quantization: str | None = None,
    *,
    folder: Path,
    mmproj: bool = True,
    progress: Progress | None = None,
    notice: Callable[[str], None] | None = None,
    endpoint: str | None = None,
    token: str | None = None,
    stop: Stop | None = None,
) -> Path:
    """Download a model of `repository` ("owner/name") into `folder` (the models folder).

    `quantization` is a quantisation of a GGUF ("Q4_0"), the name of a file, or "safetensors" for the weights
    for PyTorch; None selects the preferred GGUF, or the only one, or safetensors if there is no GGUF.
    With a GGUF comes the file of its vision, if the repository has one, unless `mmproj` is False. `notice` is
    called with what was chosen unasked. Files are checked against the Hub's digest and appear only when
    they are complete; repeating the call after an interruption continues the download. `endpoint` and `token`
    None mean the Hub library's own settings. What `progress` raises ends the download, and so does
    `stop`, from another thread; it can be continued as after any interruption.

    Returns the (first) file of a GGUF, or the folder of safetensors. Raises ModelError, ConfigError,
    CapacityError (no disk space), BackendError (no connection, damaged data), MissingDependencyError,
    PullStoppedError.
    """
    stop = stop or Stop()
    with translated(repository):
        snapshot = replace(look_up(repository, endpoint, token), stop=stop)
        stop.check()
        target = folder.joinpath(*repository.split("/"))
        if quantization is None and notice is not None and has_safetensors(snapshot):
            notice(_taken(snapshot))
        if not _means_safetensors(snapshot, quantization):
            model = choose_gguf(snapshot, quantization)
            vision = vision_of(snapshot, model[0]) if mmproj else []
            if vision and notice is not None:
                notice(f"With {vision[0].name}, by which it sees images (--no-mmproj leaves it out).")
            return _download(snapshot, [*model, *vision], target, progress)[0]
        check_installed(repository)
        wanted = choose_safetensors(snapshot, target)
        _download(snapshot, wanted, target, progress)
        remove_stale(target, wanted)
        return target


def parse_name(model: str) -> tuple[str, str | None]:
    """(repository, quantisation) of `OWNER/NAME[:QUANT]`, or of an address copied from the browser:
    https://huggingface.co/OWNER/NAME.
    """
    place = re.match(r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/([^/]+/[^/?#]+)", model)
    repository, _, quantization = (place[1] if place else model).strip().partition(":")
    return repository, quantization or None


def _means_safetensors(snapshot: Snapshot, quantization: str | None) -> bool:
    if quantization is not None:
        return quantization.casefold() == SAFETENSORS
    return has_safetensors(snapshot) and not gguf_files(snapshot)


def _taken(snapshot: Snapshot) -> str:
    """The message about the choice from a repository with safetensors."""
    name = snapshot.repository
    if gguf_files(snapshot):
        return f"{name} has GGUF files and safetensors: pulling a GGUF. For safetensors: {name}:{SAFETENSORS}"
    return f"{name} has no GGUF file: pulling its safetensors, which run on PyTorch."


def _download(
    snapshot: Snapshot, wanted: Sequence[RemoteFile], target: Path, progress: Progress | None
) -> list[Path]:
    """Download the files to their places below `target`, in order."""
    paths = [target / file.name for file in wanted]
    total = sum(file.size for file in wanted)
    check_space(wanted, paths)
    before = 0
    for file, path in zip(wanted, paths, strict=True):
        fetch(snapshot, file, path, Report(progress, before, total, path.name))
        before += file.size
    return paths


def look_up(repository: str, endpoint: str | None, token: str | None) -> Snapshot:
    """List a repository's files. Raises ConfigError, BackendError, and the Hub library's errors."""
    from huggingface_hub import HfApi

    if repository.count("/") != 1 or not all(repository.split("/")):
        raise ConfigError(
            f"{quoted(repository)} is not the name of a repository.",
            hint="Use OWNER/NAME or OWNER/NAME:QUANT.",
        )
    api = HfApi(endpoint=endpoint, token=token)
    try:
        info = api.model_info(repository, files_metadata=True, timeout=TIMEOUT_S)
    except (KeyError, TypeError, JSONDecodeError) as exc:
        raise not_the_hub(api.endpoint) from exc
    files = tuple(_file(sibling) for sibling in info.siblings or () if _stays_below(sibling.rfilename))
    return Snapshot(repository, info.sha or "main", files, endpoint, token)


def not_the_hub(endpoint: str) -> BackendError:
    """The error for a server that is not the Hub."""
    return BackendError(
        f"{endpoint} does not answer as the Hub does.", hint="Check HF_ENDPOINT, and your proxy."
    )


def _stays_below(name: str) -> bool:
    """Whether a file of this name stays below its destination folder."""
    path = PureWindowsPath(name)  # the stricter reading: both kinds of slashes, and drives
    return ".." not in path.parts and not path.anchor


def _file(sibling: RepoSibling) -> RemoteFile:
    digest = sibling.lfs.sha256 if sibling.lfs else sibling.blob_id or ""
    return RemoteFile(sibling.rfilename, sibling.size or 0, digest)
