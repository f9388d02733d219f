"""Node.js and what `page/` needs of npm, where they are there."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

PAGE = Path(__file__).parent.parent / "page"
OLDEST_NODE = (20, 19)
INSTALL_S = 300


@cache
def missing() -> str | None:
    """Why the page cannot be built here; None if it can. Installs its packages if need be."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        return "Node.js is not installed"
    said = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    version = tuple(int(part) for part in said.strip().lstrip("v").split(".")[:2])
    if version < OLDEST_NODE:
        return f"Node.js {said.strip()} is too old for Vite"
    with (PAGE / ".install.lock").open("w") as lock:  # one process of the tests at a time
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (PAGE / "node_modules/.bin/vite").exists():
            return None
        done = _run([npm, "ci"], INSTALL_S)
    assert "EUSAGE" not in done.stderr, done.stderr  # the lock file does not fit: a fault of ours
    return None if done.returncode == 0 else f"npm cannot install the page's packages: {done.stderr[-200:]}"


def npm(*words: str, timeout: float = 120) -> str:
    """Run npm in `page/`; what it printed. Skips the test where it cannot; fails it where npm fails."""
    if why := missing():
        pytest.skip(why)
    done = _run(["npm", *words], timeout)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _run(command: list[str], timeout: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, check=False, cwd=PAGE, capture_output=True, text=True, timeout=timeout)
