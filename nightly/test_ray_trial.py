"""Replicas on Ray Serve, clients that leave, a replica that is killed: `benchmarks/ray_trial.py`, shorter."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import ray_serve  # noqa: F401  # skips where there is no Ray

TRIAL = Path(__file__).parents[1] / "benchmarks" / "ray_trial.py"


def test_every_answer_is_right_and_nothing_is_left(seconds: float) -> None:
    requests = min(500, int(60 + seconds / 10))
    command = [sys.executable, str(TRIAL), "--requests", str(requests), "--compare", "0"]
    ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=3600)
    assert ran.returncode == 0, ran.stderr[-5000:]
    found = json.loads(ran.stdout.splitlines()[-1])["trial"]
    assert found["killed"] == 1
    assert found["right"] + found["left"] == requests
    assert found["replicas_at_the_end"] == 2
    assert not found["still_running"]
    assert not [error for error in found["errors"] if error.startswith("unclear")], found["errors"]
