"""Downloading files from the Hugging Face Hub so that an interruption costs nothing.

The Hub's own library makes the addresses, signs the requests and knows the errors; the transfer is ours,
because `hf_hub_download` (2.4) deletes its partial file when it fails and starts again from nothing. Here the
partial file stays beside its destination, named after the content it will have, and is continued.
"""

from __future__ import annotations

import glob
import hashlib
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from foredraft.errors import BackendError, ConfigError
from foredraft.library.hub_errors import disk_full, transport_error

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

TIMEOUT_S = 30.0
"""How long the Hub may stay silent."""
FRUITLESS_ATTEMPTS = 3
"""After so many connections in a row that brought nothing the download is given up (to be continued)."""
_CHUNK = 1 << 20


class Progress(Protocol):
    """Hears how a download goes: bytes of all files of the model together, those of earlier runs included."""

    def __call__(self, done: int, total: int, file: str) -> None: ...


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of the repository. `digest` is the sha256 of a large file, else git's sha1 of its blob."""

    name: str
    size: int
    digest: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A repository at one commit, so that the parts of a model cannot come from different ones. `files` are
    all of it that have harmless names.
    """

    repository: str
    commit: str
    files: tuple[RemoteFile, ...]
    endpoint: str | None
    token: str | None


@dataclass(slots=True)
class Report:
    """Turns the progress of one file into that of all."""

    progress: Progress | None
    before: int
    total: int
    file: str

    def __call__(self, done: int) -> None:
        if self.progress is not None:
            self.progress(self.before + done, self.total, self.file)


def _partial(path: Path, file: RemoteFile) -> Path:
    return path.with_name(f".{path.name}.{file.digest[:16]}.part")


def check_space(files: Sequence[RemoteFile], paths: Sequence[Path]) -> None:
    """Make the folder; raise CapacityError if what is still missing of the files does not fit on its disk."""
    folder = paths[0].parent
    folder.mkdir(parents=True, exist_ok=True)
    needed = 0
    for file, path in zip(files, paths, strict=True):
        partial = _partial(path, file)
        here = path if path.is_file() else partial
        needed += file.size - (here.stat().st_size if here.is_file() else 0)
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise disk_full(folder, f"{needed / 1e9:,.2f} GB are needed and {free / 1e9:,.2f} GB are free")


def fetch(snapshot: Snapshot, file: RemoteFile, path: Path, report: Report) -> None:
    """Make `path` the file, continuing where an earlier run ended; nothing is sent if it is there already.

    Raises BackendError if it arrives damaged, ConfigError if another process is at it, and what the Hub's
    library and the system raise (see `hub_errors.translated`).
    """
    import filelock

    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_file() and _is_right(file, path):
        report(file.size)
        return
    partial = _partial(path, file)
    try:
        with filelock.FileLock(path.with_name(f".{path.name}.lock"), timeout=0):
            for stale in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
                if stale != partial:  # of an earlier version of the file
                    stale.unlink()
            _transfer(snapshot, file, partial, report)
            _verify(file, partial)
            partial.replace(path)
    except filelock.Timeout:
        raise ConfigError(
            f"{path.name} is being downloaded by another process.", hint="Wait for it, or stop it."
        ) from None


def _transfer(snapshot: Snapshot, file: RemoteFile, partial: Path, report: Report) -> None:
    """Append to `partial` until it has `file.size` bytes, reconnecting as long as that brings something."""
    from huggingface_hub.errors import HfHubHTTPError

    client_error = transport_error()
    fruitless = 0
    with partial.open("ab") as out:
        reached = out.tell()
        report(reached)
        while out.tell() < file.size:
            failure: Exception | None = None
            try:
                _append(snapshot, file, out, report)
            except HfHubHTTPError:
                raise
            except client_error as exc:
                failure = exc
            fruitless = 0 if out.tell() > reached else fruitless + 1
            reached = max(reached, out.tell())
            if fruitless >= FRUITLESS_ATTEMPTS:
                raise failure or BackendError(f"The Hub sends only {reached:,} bytes of {file.name}.")


def _append(snapshot: Snapshot, file: RemoteFile, out: Any, report: Report) -> None:
    """One request for the bytes that are missing."""
    from huggingface_hub import get_session, hf_hub_url
    from huggingface_hub.utils import (  # type: ignore[attr-defined]  # documented, without __all__
        build_hf_headers,
        hf_raise_for_status,
    )

    url = hf_hub_url(snapshot.repository, file.name, revision=snapshot.commit, endpoint=snapshot.endpoint)
    # Ranges count bytes of the file itself: no compression on the way.
    headers = build_hf_headers(token=snapshot.token) | {"Accept-Encoding": "identity"}
    start = out.tell()
    if start:
        headers["Range"] = f"bytes={start}-"
    with get_session().stream("GET", url, headers=headers, timeout=TIMEOUT_S) as response:
        hf_raise_for_status(response)
        if start and response.status_code != 206:  # a server that knows no ranges sends everything again
            out.seek(0)
            out.truncate()
        for chunk in response.iter_bytes():
            out.write(chunk)
            report(out.tell())


def _verify(file: RemoteFile, partial: Path) -> None:
    """Throw away what is not what the Hub says it is."""
    if not _is_right(file, partial):
        partial.unlink()
        raise BackendError(f"{file.name} arrived damaged: its checksum is wrong.", hint="Pull it again.")


def _is_right(file: RemoteFile, path: Path) -> bool:
    return path.stat().st_size == file.size and file.digest in ("", _digest(path, file))


def _digest(path: Path, file: RemoteFile) -> str:
    """The sha256 of the content, or, for a file that git itself keeps, the sha1 of its blob."""
    sha: Any = hashlib.sha256()
    if len(file.digest) == 40:
        sha = hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)
    with path.open("rb") as opened:
        while chunk := opened.read(_CHUNK):
            sha.update(chunk)
    return str(sha.hexdigest())
