"""The tests that need Ray, in an environment of their own: Ray is in no other."""

from __future__ import annotations

import os
import shutil
import subprocess
import venv
from pathlib import Path

import pytest

from foredraft.library.catalogue import DEFAULT_REQUIREMENT

ROOT = Path(__file__).parents[1]
TESTS = ("anthropic", "gguf", "httpx", "hypothesis", "openai", "pytest")
MOST_S = 3600.0
FILES = (
    "tests/scale/test_cluster_on_ray.py",
    "tests/scale/test_prefix_router.py",
    "tests/scale/test_ray_nodes.py",
    "tests/scale/test_ray_served.py",
    "nightly/test_ray_trial.py",
)


def test_replicas_on_ray(tmp_path: Path) -> None:
    """Everything is installed anew; the tests' output is shown where one fails."""
    folder = tmp_path / "ray"
    venv.create(folder, with_pip=True)
    python = str(folder / ("Scripts" if os.name == "nt" else "bin") / "python")
    wanted = [f"{ROOT}[ray,llamacpp,hub]", *TESTS]
    for packages in (wanted, ["--no-deps", DEFAULT_REQUIREMENT]):
        made = subprocess.run(
            [python, "-m", "pip", "install", "-q", *packages], capture_output=True, text=True, check=False
        )
        if made.returncode:
            pytest.skip(f"Ray cannot be installed: {made.stderr.strip()[-300:]}")
    command = [python, "-m", "pytest", "-q", "-W", "ignore", "-p", "no:cacheprovider"]
    try:
        done = subprocess.run(
            [*command, *FILES],
            cwd=ROOT,
            env={**os.environ, "FOREDRAFT_CACHE": str(tmp_path / "cache")},
            capture_output=True,
            text=True,
            timeout=MOST_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-6000:]
        assert "passed" in done.stdout
        assert "skipped" not in done.stdout
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # a gigabyte
