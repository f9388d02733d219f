"""`foredraft rpc-server` in a process of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from foredraft.backends.llamacpp.native import rpc_build

READY = re.compile(r"^Serving RPC on (\S+)\. ")

needs_library = pytest.mark.skipif(
    rpc_build.find(None) is None, reason="llama.cpp's RPC backend is not compiled here: foredraft rpc-build"
)


@contextmanager
def rpc_server(
    cache: Path, *arguments: str, before: Sequence[str] = ()
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Its address, and the process. `before`: the command that runs it, such as in a network namespace."""
    command = [*before, sys.executable, "-m", "foredraft", "rpc-server", "--threads", "1"]
    process = subprocess.Popen(
        [*command, *(arguments or ("--port", "0"))],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "FOREDRAFT_CACHE": str(cache)},
    )
    assert process.stderr is not None
    try:
        said = ""
        for line in process.stderr:
            said += line
            if found := READY.match(line):
                yield found[1], process
                return
        pytest.fail(f"the RPC server did not start:\n{said}")
    finally:
        process.kill()
        process.wait(20)
        process.stderr.close()


def children_of(process: subprocess.Popen[str]) -> list[int]:
    """Its processes that serve clients, or wait for them."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1]
            if int(parent) == process.pid:
                found.append(int(stat.parent.name))
    return found


def end_children(process: subprocess.Popen[str]) -> None:
    """Kill them, and wait until they have ended: until then one may accept a connection that comes."""
    children = children_of(process)
    for child in children:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    patience = time.monotonic() + 20
    for child in children:
        while _runs(child):
            assert time.monotonic() < patience, child
            time.sleep(0.01)


def _runs(process: int) -> bool:
    """Whether there is such a process, and more of it than its exit code."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"
