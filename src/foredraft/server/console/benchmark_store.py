"""The last reports of benchmarks, as JSON files in the cache folder."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from foredraft.files import write_atomically
from foredraft.server.console.benchmark_schemas import Benchmark

logger = logging.getLogger(__name__)

FOLDER = "benchmarks"
MOST_REPORTS = 20
LARGEST_REPORT = 1 << 20
"""Bytes of a file beyond which it is not one of ours."""

_NAME = re.compile(r"[0-9a-f]{16}\.json")


class BenchmarkStore:
    """Reports in `cache_dir`; None: they are kept in memory only. Its methods take milliseconds; they log
    what fails and raise nothing, as a report is also in memory.
    """

    def __init__(self, cache_dir: Path | None) -> None:
        self._writing = threading.Lock()
        self._folder = None if cache_dir is None else cache_dir / FOLDER

    def load(self) -> list[Benchmark]:
        """All reports, the newest first. One that was running then has failed; files that are none are left
        alone.
        """
        try:
            files = [] if self._folder is None else [*self._folder.iterdir()]
        except OSError:  # there is no folder yet
            return []
        found = [report for path in files if _NAME.fullmatch(path.name) and (report := _read(path))]
        return sorted(map(_ended, found), key=lambda report: report.at, reverse=True)

    def save(self, latest: Callable[[], Benchmark | None]) -> None:
        """Write a report as it is now, if there is one: the last write has its last state."""
        if self._folder is None:
            return
        try:
            with self._writing:
                report = latest()
                if report is not None:
                    write_atomically(self._path(report.id), report.model_dump_json(indent=1).encode())
        except OSError as error:
            logger.warning("The benchmark's report was not written: %s.", error.strerror or error)

    def remove(self, report: Benchmark) -> None:
        """Delete a report."""
        if self._folder is None:
            return
        try:
            self._path(report.id).unlink(missing_ok=True)
        except OSError as error:
            logger.warning("The benchmark's report was not deleted: %s.", error.strerror or error)

    def _path(self, report_id: str) -> Path:
        assert self._folder is not None
        return self._folder / f"{report_id}.json"


def _read(path: Path) -> Benchmark | None:
    try:
        with path.open("rb") as file:
            text = file.read(LARGEST_REPORT + 1)
        report = Benchmark.model_validate_json(text[:LARGEST_REPORT])
    except (OSError, ValidationError):
        logger.warning("%s is not a benchmark's report; it is left out.", path.name)
        return None
    return report if f"{report.id}.json" == path.name else None


def _ended(report: Benchmark) -> Benchmark:
    if report.state != "running":
        return report
    return report.model_copy(update={"state": "failed", "error": "The server ended while it ran."})
