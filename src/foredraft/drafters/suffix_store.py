"""Past outputs on disk: one append-only file for each vocabulary and scope.

A file is a header (16 bytes of MAGIC, then 16 of a digest of vocabulary and scope) and records: token count
and CRC-32 as two little-endian 32-bit numbers, then the tokens as 32-bit integers. The CRC covers the count
and the tokens, so an incomplete record after a crash is recognised, ignored, and cut off by the next writer.
Writers take an advisory lock on the file itself; compaction replaces it (temporary file, fsync, rename),
which a writer that waited for the lock detects by the inode.

The store is a cache. Nothing here raises because of the disk's content: a problem is logged, and the affected
outputs are lost.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import struct
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import numpy as np

from foredraft.drafters.suffix_index import SEPARATOR, Tokens
from foredraft.files import is_at

if sys.platform != "win32":
    import fcntl

MAGIC = b"foredraft-suffix"
FLUSH_TOKENS = 16_384
"""Queued tokens from which they should be written."""

FLUSH_S = 60.0
"""Seconds after which they should be written however few they are: a process may be killed."""

_HEADER = 32
_FRAME = struct.Struct("<II")
_WORD = 4
_OURS = re.compile(  # including temporary files that a crash left behind
    r"suffix-[0-9a-f]{16}-[0-9a-f]{16}\.bin(\.tmp|\.corrupt)?|ngram-cache-.*\.bin(\.\w{8})?"
)
_KEPT_BY_COMPACTION = 0.75  # of the limit, so that a full file is not rewritten at every flush

_NOTHING: Tokens = np.empty(0, np.int32)
_log = logging.getLogger(__name__)


class StoreFile(NamedTuple):
    """One file of past outputs, as reported by `foredraft doctor`."""

    file: Path
    tokens: int
    bytes: int
    outputs: int


class SuffixStore:
    """The past outputs of one scope under one vocabulary.

    Outputs are queued by `add` and written by `flush`, or by `write` after `take`; `load` and `write`, which
    access the file, may run on another thread. At most `max_tokens` are kept; when the file exceeds that, the
    oldest outputs are dropped.
    """

    def __init__(
        self, folder: Path, *, vocab_hash: str, vocab_size: int, scope: str, max_tokens: int
    ) -> None:
        names = [hashlib.sha256(part.encode()).hexdigest()[:16] for part in (vocab_hash, scope)]
        self.path = folder / f"suffix-{names[0]}-{names[1]}.bin"
        self.max_tokens = max_tokens
        self._vocab_size = vocab_size
        self._header = MAGIC + hashlib.sha256(f"{vocab_hash}\0{scope}".encode()).digest()[:16]
        self._queue: list[bytes] = []
        self._queued = 0
        self._since = 0.0

    @property
    def missing(self) -> bool:
        """Whether there is no file, and so nothing to load."""
        try:
            self.path.stat()
        except FileNotFoundError:
            return True
        except OSError:
            return False  # `load` reports the problem
        return False

    def load(self) -> Tokens:
        """The newest `max_tokens` tokens, oldest first, with two SEPARATORs before every output."""
        try:
            data = self.path.read_bytes()
            if self._foreign(data):
                with self._locked():  # moves it aside
                    return _NOTHING
            words = self._parse(data)
            if len(words) and (words.max() >= self._vocab_size or words.min() < SEPARATOR):
                self._move_aside("holds tokens outside the vocabulary")
                return _NOTHING
        except FileNotFoundError:
            return _NOTHING
        except OSError as error:
            _log.warning("Past outputs cannot be read from %s: %s. They are not used.", self.path, error)
            return _NOTHING
        return words

    def add(self, tokens: Sequence[int]) -> None:
        """Queue an output; if it is longer than `max_tokens`, only its end."""
        if not tokens or not self.max_tokens:
            return
        payload = np.asarray(tokens[-self.max_tokens :], "<i4").tobytes()
        count = struct.pack("<I", len(payload) // _WORD)
        if not self._queue:
            self._since = monotonic()
        self._queue.append(
            _FRAME.pack(len(payload) // _WORD, zlib.crc32(payload, zlib.crc32(count))) + payload
        )
        self._queued += len(payload) // _WORD

    @property
    def full(self) -> bool:
        """Whether enough is queued to be written, or for long enough."""
        return self._queued >= FLUSH_TOKENS or bool(self._queue and monotonic() - self._since >= FLUSH_S)

    def take(self) -> bytes:
        """Remove and return the queued outputs, for `write`."""
        queue, self._queue, self._queued = self._queue, [], 0
        return b"".join(queue)

    def flush(self) -> None:
        """Write the queued outputs."""
        self.write(self.take())

    def write(self, records: bytes) -> None:
        """Append records to the file. If that fails, a warning is logged and they are lost."""
        if not records:
            return
        try:
            if not self.path.parent.is_dir():
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._locked() as file:
                self._append(file, records)
        except OSError as error:
            _log.warning("Outputs cannot be stored in %s: %s.", self.path, error)

    def _append(self, file: int, records: bytes) -> None:
        data = _read(file)
        spans = list(_records(data))
        good = spans[-1][1] if spans else _HEADER
        if len(data) > good:
            _log.warning("%s: dropped %d bytes of an unfinished output.", self.path, len(data) - good)
            os.ftruncate(file, good)
        if len(data) < _HEADER:
            os.ftruncate(file, 0)
            records, data = self._header + records, b""
        _write(file, records)
        data = data[:good] + records
        if len(data) // _WORD > self.max_tokens:  # this counts the frames too, which is on the safe side
            self._compact(data)

    def _compact(self, data: bytes) -> None:
        """Replace the file by its newest outputs. The caller holds the lock."""
        first = _newest(list(_records(data)), int(self.max_tokens * _KEPT_BY_COMPACTION))
        temporary = self.path.with_name(self.path.name + ".tmp")
        file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            _write(file, self._header + data[first:])
            os.fsync(file)
        finally:
            os.close(file)
        temporary.replace(self.path)
        _sync_folder(self.path.parent)

    def _parse(self, data: bytes) -> Tokens:
        spans = list(_records(data))
        if not spans:
            return _NOTHING
        first = _newest(spans, self.max_tokens)
        words = np.frombuffer(data[first : spans[-1][1]], "<i4").astype(np.int32)
        frames = (np.array([start for start, _ in spans if start >= first]) - first) // _WORD
        words[frames] = words[frames + 1] = SEPARATOR
        return words

    def _foreign(self, data: bytes) -> bool:
        """Whether the file has another format. A partial header is a file that is just being created."""
        return data[:_HEADER] != self._header[: len(data)]

    def _move_aside(self, what: str) -> None:
        aside = self.path.with_name(self.path.name + ".corrupt")
        self.path.replace(aside)
        _log.warning("%s %s: moved to %s; a new file is started.", self.path, what, aside.name)

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Open the file for appending and lock it; it is created if needed, and moved aside if it has another
        format.

        Raises OSError.
        """
        while True:
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                if sys.platform != "win32":
                    fcntl.flock(file, fcntl.LOCK_EX)
                if not is_at(file, self.path):  # replaced or erased while waiting
                    continue
                if self._foreign(os.read(file, _HEADER)):
                    self._move_aside("is not a file of past outputs")
                    continue
                yield file
                return
            finally:
                os.close(file)


def describe(folder: Path) -> list[StoreFile]:
    """Describe the files of past outputs in a store's folder, by name. Raises OSError."""
    found: list[StoreFile] = []
    for path in remembered(folder):
        if path.suffix == ".bin" and path.name.startswith("suffix-"):
            data = path.read_bytes()
            spans = list(_records(data)) if data.startswith(MAGIC) else []
            tokens = sum(end - start - _FRAME.size for start, end in spans) // _WORD
            found.append(StoreFile(path, tokens, len(data), len(spans)))
    return found


def forget(folder: Path) -> tuple[int, int]:
    """Erase all stored texts in the folder, and nothing else; returns (files, bytes) erased.

    Raises OSError if a file cannot be erased.
    """
    erased = [(path, path.lstat().st_size) for path in remembered(folder)]
    for path, _ in erased:
        path.unlink(missing_ok=True)
    return len(erased), sum(size for _, size in erased)


def remembered(folder: Path) -> list[Path]:
    """All files that `forget` erases, by name. Raises OSError."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if _OURS.fullmatch(path.name) and not path.is_dir())


def _records(data: bytes) -> Iterator[tuple[int, int]]:
    """(start, end) in bytes of every record, frame included, up to the first incomplete one."""
    view, start = memoryview(data), _HEADER
    while start + _FRAME.size <= len(data):
        count, checksum = _FRAME.unpack_from(data, start)
        end = start + _FRAME.size + count * _WORD
        if not count or end > len(data):
            return
        if zlib.crc32(view[start + _FRAME.size : end], zlib.crc32(view[start : start + _WORD])) != checksum:
            return
        yield start, end
        start = end


def _newest(spans: Sequence[tuple[int, int]], max_tokens: int) -> int:
    """The start of the newest records with at most `max_tokens` in total; the last one is always kept."""
    room, first = max_tokens, spans[-1][0]
    for start, end in reversed(spans):
        room -= (end - start - _FRAME.size) // _WORD
        if room < 0:
            break
        first = start
    return first


def _read(file: int) -> bytes:
    chunks: list[bytes] = []
    os.lseek(file, 0, os.SEEK_SET)
    while chunk := os.read(file, 1 << 24):
        chunks.append(chunk)
    return b"".join(chunks)


def _write(file: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]


def _sync_folder(folder: Path) -> None:
    """Make a rename durable, if the system can sync folders."""
    if sys.platform == "win32":
        return
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
