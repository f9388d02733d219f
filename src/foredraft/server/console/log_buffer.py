"""The last lines that the server logged, in memory."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from foredraft.server.console.request_schemas import LogLine
from foredraft.server.request_log import escaped

LOGGERS = ("foredraft.requests", "foredraft.server", "uvicorn")

MOST_LINES = 500
MOST_LINE = 4000
"""Characters of a line, a stack trace included."""


class LogBuffer(logging.Handler):
    """A handler that keeps what it is given. Which levels come is for the loggers to say."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: deque[LogLine] = deque(maxlen=MOST_LINES)
        self._number = 0
        self._formatter = logging.Formatter()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Keep what the server's loggers get, inside the block."""
        loggers = [logging.getLogger(name) for name in LOGGERS]
        for logger in loggers:
            logger.addHandler(self)
        try:
            yield
        finally:
            for logger in loggers:
                logger.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record as a line; called with the handler's lock held."""
        self._number += 1
        text = escaped(self._formatter.format(record))[:MOST_LINE]
        self._lines.append(
            LogLine(number=self._number, at=record.created, level=_level(record.levelno), text=text)
        )

    def lines(self, after: int = 0) -> list[LogLine]:
        """The lines with a higher number than `after`, the oldest first."""
        self.acquire()
        try:
            new = min(self._number - after, len(self._lines))
            return [self._lines[-back] for back in range(new, 0, -1)]
        finally:
            self.release()


def _level(number: int) -> Literal["info", "warning", "error"]:
    if number >= logging.ERROR:
        return "error"
    return "warning" if number >= logging.WARNING else "info"
