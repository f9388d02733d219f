"""Recording what an engine answers in use, on a thread of its own: no request waits for the disk."""

from __future__ import annotations

import logging
import threading
from datetime import datetime
from pathlib import Path
from queue import Full, Queue
from types import TracebackType
from typing import Self

from foredraft.bench.record import trace_set
from foredraft.bench.trace import Trace, TraceSet
from foredraft.bench.trace_file import LARGEST_FILE, TraceFile
from foredraft.engine.engine import Engine
from foredraft.errors import ConfigError
from foredraft.protocols import RequestView
from foredraft.types import FinishEvent, FinishReason

WAITING = 256
"""Answers that may wait for the disk; further ones are not recorded."""

CATEGORY = "serve"

_COMPLETE = (FinishReason.STOP, FinishReason.LENGTH)

_log = logging.getLogger(__name__)


class TraceRecorder:
    """Writes every complete answer of the engines it watches into one trace file. A context manager.

    The tokens are taken as they are, so the model computes nothing in addition. At `most_bytes` the recording
    ends. Whatever fails is logged once, and requests go on.
    """

    def __init__(self, path: Path, *, most_bytes: int = LARGEST_FILE) -> None:
        if path.suffix == ".gz":
            raise ConfigError(
                f"{path} cannot be compressed while it is recorded.", hint="Name a file that ends in .jsonl."
            )
        self.path = path
        self.written = 0
        self.lost = 0
        self._most_bytes = most_bytes
        self._header: TraceSet | None = None
        self._file: TraceFile | None = None
        self._queue: Queue[Trace | None] = Queue(WAITING)
        self._thread = threading.Thread(target=self._run, name="foredraft-recorder", daemon=True)
        self._opening = threading.Lock()
        self._ended = False

    def watch(self, engine: Engine) -> None:
        """Record this engine's answers from now on. The first one decides whose tokens the file holds; those
        of a model with other ones are not recorded, with a warning.

        Raises ConfigError for a file that cannot take them.
        """
        header = trace_set(engine, ())
        with self._opening:
            if self._header is None:
                self._open(header)
                self._header = header
        if header.vocab_hash != self._header.vocab_hash:
            _log.warning(
                "Answers of %s are not recorded: it has other tokens than %s, whose %s holds.",
                header.model,
                self._header.model,
                self.path,
            )
            return
        engine.on_finish = self._finished

    def _open(self, header: TraceSet) -> None:
        try:
            self._file = TraceFile(self.path, header, most_bytes=self._most_bytes)
        except OSError as error:
            raise ConfigError(
                f"{self.path} cannot be written: {error.strerror or error}.", hint="Name another file."
            ) from None
        self._thread.start()

    def _finished(self, request: RequestView, event: FinishEvent) -> None:
        """On the engine's thread: takes a copy of the tokens, and no more."""
        if self._ended or event.reason not in _COMPLETE:
            return
        name = f"{datetime.now().astimezone().isoformat(timespec='milliseconds')}/{request.id}"
        end = request.prompt_length
        trace = Trace(
            name, CATEGORY, tuple(request.tokens[:end]), tuple(request.tokens[end:]), request.prediction
        )
        try:
            self._queue.put_nowait(trace)
        except Full:
            self._lose("the disk is too slow")

    def _run(self) -> None:
        assert self._file is not None
        while (trace := self._queue.get()) is not None:
            try:
                if self._file.append(trace):
                    self.written += 1
                    continue
                self._lose(f"it has reached {self._most_bytes:,} bytes")
            except OSError as error:
                self._lose(error.strerror or str(error))

    def _lose(self, why: str) -> None:
        if not self.lost:
            _log.warning("%s does not get all answers: %s.", self.path, why)
        self.lost += 1

    def close(self) -> None:
        """Write what is waiting and end the thread. May be called twice."""
        self._ended = True
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
