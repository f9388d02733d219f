"""What the measuring scripts of the server share: servers in processes of their own, and figures."""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import geometric_mean
from typing import IO

import httpx
import psutil

RESULTS = Path(__file__).parent / "results"
FOREDRAFT_READY = r" on (http://\S+?)/v1$"
START_SECONDS = 180.0
STOP_SECONDS = 30.0
ANSWER_SECONDS = 30.0

IDLE_GAUGES = (
    "foredraft_num_requests",
    "foredraft_num_requests_running",
    "foredraft_num_requests_waiting",
    "foredraft_kv_cache_tokens",
)
"""All of them are 0 in a server without requests."""


@dataclass(frozen=True, slots=True)
class Running:
    """A server that runs: its address without /v1, its process, and the last lines that it printed."""

    url: str
    process: psutil.Process
    said: deque[str] = field(default_factory=lambda: deque(maxlen=50))

    def rss(self) -> int:
        """Resident memory in bytes."""
        return int(self.process.memory_info().rss)

    def cpu_seconds(self) -> float:
        """Processor time taken so far."""
        times = self.process.cpu_times()
        return float(times.user + times.system)


def serve_command(
    model: str | None,
    speculate: str,
    *,
    threads: int,
    sequences: int,
    context: int,
    foredraft: Sequence[str] = (sys.executable, "-m", "foredraft"),
) -> list[str]:
    """`foredraft serve` on a free port. Past outputs are neither read nor kept, requests not logged."""
    command = [*foredraft, "serve", *([model] if model else []), "--port", "0"]
    command += ["--speculate", speculate, "-t", str(threads), "-np", str(sequences), "--ctx", str(context)]
    return [*command, "--no-remember", "--log-format", "off"]


@contextmanager
def started(command: Sequence[str], ready: str = FOREDRAFT_READY) -> Iterator[Running]:
    """The server that `command` runs, stopped at the end. `ready` finds its address in a line it prints.

    Ends the script with what the server said if it does not start.
    """
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    except OSError as error:
        raise SystemExit(f"{command[0]} cannot be run: {error}") from None
    output = _Output(process.stdout, ready)
    reader = threading.Thread(target=output.read, daemon=True)
    reader.start()
    try:
        output.found.wait(START_SECONDS)
        if not output.url:
            raise SystemExit("The server did not start:\n" + "\n".join(output.said))
        yield Running(output.url, psutil.Process(process.pid), output.said)
    finally:
        with suppress(psutil.Error):  # a stopped process would not hear that it is to end
            psutil.Process(process.pid).resume()
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reader.join(STOP_SECONDS)
        output.close()


def check_server(url: str) -> None:
    """End the script, saying what to do, if no server answers at an address given without /v1."""
    try:
        httpx.get(f"{url}/v1/models", timeout=ANSWER_SECONDS)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise SystemExit(
            f"No server answers at {url}: {error}\n"
            "Start one (`foredraft serve`) and give its address, without /v1, as --url."
        ) from None


class _Output:
    """What a server prints, read to the end on a thread: a full pipe would stop the server."""

    def __init__(self, stream: IO[str] | None, ready: str) -> None:
        assert stream is not None
        self._stream = stream
        self._ready = ready
        self.said: deque[str] = deque(maxlen=50)
        self.url = ""
        self.found = threading.Event()
        """Set once the address is known, or there is nothing more to read."""

    def read(self) -> None:
        for line in self._stream:
            self.said.append(line.rstrip())
            match = re.search(self._ready, line.rstrip())
            if match and not self.url:
                self.url = match[1]
                self.found.set()
        self.found.set()

    def close(self) -> None:
        self._stream.close()


@contextmanager
def probing(url: str, seconds: float = 0.1) -> Iterator[list[tuple[float, float]]]:
    """(time.time(), milliseconds) of a GET /health every `seconds`, filled when the block is left.

    A process of its own asks: the clients' event loop is busy, and its delays are not the server's.
    """
    script = str(Path(__file__).with_name("server_prober.py"))
    command = [sys.executable, script, url, str(seconds)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    samples: list[tuple[float, float]] = []
    try:
        yield samples
    finally:
        output, _ = process.communicate("", timeout=STOP_SECONDS)
        samples.extend((at, ms) for at, ms in json.loads(output))


def idle_shares(servers: Sequence[Running], seconds: float = 2.0) -> list[float]:
    """The share of one core that each server takes without requests."""
    before = [server.cpu_seconds() for server in servers]
    time.sleep(seconds)
    return [(server.cpu_seconds() - old) / seconds for server, old in zip(servers, before, strict=True)]


def gauges(exposition: str, names: Iterable[str] = IDLE_GAUGES) -> dict[str, float]:
    """Those gauges of a Prometheus exposition that are not 0, summed over their labels."""
    wanted, found = set(names), dict[str, float]()
    for line in exposition.splitlines():
        name, _, rest = line.partition("{")
        if name in wanted:
            found[name] = found.get(name, 0.0) + float(rest.rpartition(" ")[2])
    return {name: value for name, value in found.items() if value}


def percentile(values: Sequence[float], percent: float) -> float | None:
    """The smallest value that `percent` % of the values do not exceed (nearest rank); None of nothing."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(percent / 100 * len(values)) - 1)]


def mean_ratio(ratios: Iterable[float | None]) -> float | None:
    """Geometric mean of the ratios that are known."""
    known = [ratio for ratio in ratios if ratio]
    return geometric_mean(known) if known else None


def figure(value: float | None, digits: int = 1) -> str:
    """A number in a table, or a dash."""
    return "–" if value is None else f"{value:.{digits}f}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def add_results(arguments: argparse.ArgumentParser) -> None:
    """The argument that says where results are written."""
    arguments.add_argument("--results", type=Path, default=RESULTS, help="folder for tables and JSON")


def write_json(folder: Path, name: str, report: object) -> Path:
    """Write a report as JSON; returns the file."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}.json"
    file.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return file
