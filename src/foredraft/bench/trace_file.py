"""A trace file that grows line by line, and can be read whenever its writer is killed."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from foredraft.bench.trace import Trace, TraceSet, checked_header, header_line, trace_line
from foredraft.errors import ConfigError

LARGEST_FILE = 256_000_000
"""Bytes: some 200,000 answers with their prompts. `bench --replay` reads the whole file at once."""

LONGEST_HEADER = 1_000_000
"""Bytes."""

_STEP = 1 << 16

_log = logging.getLogger(__name__)


class TraceFile:
    """Adds traces to a file, which is made if need be and which only its user can read. A context manager.

    `header` says whose tokens they are; its own traces are not written. What a crash left of a last line is
    cut off. Each trace is one write, so that a file is whole at any time. Raises ConfigError for a file that
    is not a trace file, or holds another model's tokens; OSError.
    """

    def __init__(self, path: Path, header: TraceSet, *, most_bytes: int = LARGEST_FILE) -> None:
        self.path = path
        self._most_bytes = most_bytes
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
        flags |= getattr(os, "O_NONBLOCK", 0)  # a pipe would keep us waiting
        self._file = os.open(path, flags, 0o600)
        try:
            status = os.fstat(self._file)
            if not stat.S_ISREG(status.st_mode):
                raise ConfigError(f"{path} is not a file.", hint="Name one to record into.")
            if hasattr(os, "fchmod"):
                os.fchmod(self._file, 0o600)
            self._size = self._continued(header) if status.st_size else self._write(header_line(header))
        except BaseException:
            os.close(self._file)
            raise

    def _continued(self, header: TraceSet) -> int:
        """Make sure that traces can be added to what is there; returns its length."""
        with self.path.open("rb") as file:
            first = file.readline(LONGEST_HEADER)
            if not first.endswith(b"\n"):
                raise ConfigError(f"{self.path} is not a trace file.", hint="Record into another file.")
            present = checked_header(self.path, first.decode(errors="replace"))
            check_vocabulary(self.path, str(present.get("model")), str(present.get("vocab_hash")), header)
            end = _end_of_lines(file)
        if end < os.fstat(self._file).st_size:
            _log.warning("%s: a last line that was cut short is left out.", self.path)
            os.ftruncate(self._file, end)
        return end

    def _write(self, line: bytes) -> int:
        """Write a line at once; returns its length. What a full disk kept of it is taken back."""
        written = os.write(self._file, line)
        if written < len(line):
            os.ftruncate(self._file, os.fstat(self._file).st_size - written)
            raise OSError(f"only {written} of {len(line)} bytes could be written")
        return written

    def append(self, trace: Trace) -> bool:
        """Add a trace; False if the file would become too large by it. Raises OSError."""
        line = trace_line(trace)
        if self._size + len(line) > self._most_bytes:
            return False
        self._size += self._write(line)
        return True

    def close(self) -> None:
        """May be called twice."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def check_vocabulary(path: Path, model: str, vocab_hash: str, added: TraceSet) -> None:
    """Raises ConfigError if the file of these two is of other tokens than what is to be added."""
    if vocab_hash != added.vocab_hash:
        raise ConfigError(
            f"{path} holds traces of {model}, which has other tokens than {added.model}.",
            hint="Record into another file.",
        )


def _end_of_lines(file: BinaryIO) -> int:
    """Where the last line that has an end ends."""
    end = file.seek(0, os.SEEK_END)
    while end > 0:
        start = max(0, end - _STEP)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0
