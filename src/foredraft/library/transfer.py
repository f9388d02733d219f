"""Downloads files from the Hugging Face Hub such that an interruption loses nothing.

The Hub's own library creates the addresses, signs the requests and knows the errors; the transfer is our own,
because `hf_hub_download` (2.4) deletes its partial file if it fails, and starts again. Here the partial file
stays beside its destination, named after its intended content, and is continued.
"""

from __future__ import annotations

import glob
import hashlib
import shutil
import socket
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from foredraft.errors import BackendError, ConfigError
from foredraft.library.hub_errors import disk_full, transport_error

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

TIMEOUT_S = 30.0
"""Seconds of waiting for the Hub."""
FRUITLESS_ATTEMPTS = 3
"""Consecutive connections without data after which the download stops (and can be continued)."""
_CHUNK = 1 << 20


class Progress(Protocol):
    """Called with the progress of a download: bytes of all files of the model, including those of earlier
    runs.
    """

    def __call__(self, done: int, total: int, file: str) -> None: ...


class PullStoppedError(Exception):
    """`Stop.set` was called: the download was cancelled."""


class Stop:
    """Ends a download from another thread, also one that waits for data that does not come."""

    def __init__(self) -> None:
        self._one = threading.Lock()
        self._socket: socket.socket | None = None
        self.is_set = False

    def set(self) -> None:
        """End the download; it can be continued."""
        with self._one:
            self.is_set = True
            if self._socket is not None:
                with suppress(OSError):  # it is closed already
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def check(self) -> None:
        """Raises PullStoppedError if the download is to end."""
        if self.is_set:
            raise PullStoppedError

    @contextmanager
    def over(self, response: Any) -> Iterator[None]:
        """While this response is read, `set` ends its connection, too."""
        stream = response.extensions.get("network_stream")
        with self._one:
            self._socket = stream.get_extra_info("socket") if stream is not None else None
        try:
            self.check()
            yield
        finally:
            with self._one:
                self._socket = None


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of the repository. `digest` is the sha256 of a large file, else git's sha1 of its blob."""

    name: str
    size: int
    digest: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A repository at one commit, so that all parts of a model belong together. `files` are all of its files
    with harmless names. `stop` ends what is downloaded of it.
    """

    repository: str
    commit: str
    files: tuple[RemoteFile, ...]
    endpoint: str | None
    token: str | None
    stop: Stop = field(default_factory=Stop)


@dataclass(slots=True)
class Report:
    """Converts the progress of one file into that of all files."""

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
    """Create the folder; raise CapacityError if the missing bytes do not fit on its disk."""
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
    """Download a file to `path`, continuing an earlier run; nothing is requested if it exists already.

    Raises BackendError if it arrives damaged, ConfigError if another process is downloading it,
    PullStoppedError, and errors of the Hub's library and the system (see `hub_errors.translated`).
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
    """Append to `partial` until it has `file.size` bytes, reconnecting as long as there is progress."""
    from huggingface_hub.errors import HfHubHTTPError

    client_error = transport_error()
    fruitless = 0
    with partial.open("ab") as out:
        reached = out.tell()
        report(reached)
        while out.tell() < file.size:
            failure: Exception | None = None
            snapshot.stop.check()
            try:
                _append(snapshot, file, out, report)
            except HfHubHTTPError:
                raise
            except client_error as exc:
                failure = exc
            fruitless = 0 if out.tell() > reached else fruitless + 1
            reached = max(reached, out.tell())
            if fruitless >= FRUITLESS_ATTEMPTS:
                raise failure or BackendError(f"The Hub only sends {reached:,} bytes of {file.name}.")


def _append(snapshot: Snapshot, file: RemoteFile, out: Any, report: Report) -> None:
    """Request the missing bytes once."""
    from huggingface_hub import get_session, hf_hub_url
    from huggingface_hub.utils import (  # type: ignore[attr-defined]  # documented, without __all__
        build_hf_headers,
        hf_raise_for_status,
    )

    url = hf_hub_url(snapshot.repository, file.name, revision=snapshot.commit, endpoint=snapshot.endpoint)
    # Ranges count bytes of the file itself, so disable compression.
    headers = build_hf_headers(token=snapshot.token) | {"Accept-Encoding": "identity"}
    start = out.tell()
    if start:
        headers["Range"] = f"bytes={start}-"
    with get_session().stream("GET", url, headers=headers, timeout=TIMEOUT_S) as response:
        hf_raise_for_status(response)
        if (
            start and response.status_code != 206
        ):  # a server without support for ranges sends everything again
            out.seek(0)
            out.truncate()
        with snapshot.stop.over(response):
            for chunk in response.iter_bytes():
                out.write(chunk)
                report(out.tell())
                snapshot.stop.check()


def _verify(file: RemoteFile, partial: Path) -> None:
    """Delete the partial file if its checksum is wrong, and raise BackendError."""
    if not _is_right(file, partial):
        partial.unlink()
        raise BackendError(f"{file.name} arrived damaged: its checksum is wrong.", hint="Pull it again.")


def _is_right(file: RemoteFile, path: Path) -> bool:
    return path.stat().st_size == file.size and file.digest in ("", _digest(path, file))


def _digest(path: Path, file: RemoteFile) -> str:
    """The sha256 of the content, or for a file stored in git itself the sha1 of its blob."""
    sha: Any = hashlib.sha256()
    if len(file.digest) == 40:
        sha = hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)
    with path.open("rb") as opened:
        while chunk := opened.read(_CHUNK):
            sha.update(chunk)
    return str(sha.hexdigest())
