"""The command of a checkout, `bin/foredraft`, and what `make demo` installs."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with the command, in a folder with a space in its name."""
    folder = tmp_path / "my checkout"
    (folder / "bin").mkdir(parents=True)
    shutil.copy(ROOT / "bin" / "foredraft", folder / "bin")
    return folder


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_without_an_environment_it_says_what_to_do(checkout: Path) -> None:
    ran = run(checkout / "bin" / "foredraft", "run", "Hello")
    assert ran.returncode == 2
    assert ran.stderr == f"foredraft is not set up in {checkout} yet: run 'make demo' there.\n"


def test_it_runs_the_environments_command(checkout: Path, tmp_path: Path) -> None:
    command = checkout / ".venv" / "bin" / "foredraft"
    command.parent.mkdir(parents=True)
    command.write_text('#!/bin/sh\nprintf "%s|" "$@"\nexit 7\n')
    command.chmod(0o755)
    link = tmp_path / "foredraft"
    link.symlink_to(checkout / "bin" / "foredraft")
    for name in (checkout / "bin" / "foredraft", link):
        ran = run(name, "run", "two words", "")
        assert (ran.returncode, ran.stdout, ran.stderr) == (7, "run|two words||", "")


def test_make_demo_installs_what_the_next_commands_of_the_readme_need() -> None:
    """Whatever the README's lines for pip install."""
    readme, makefile = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "Makefile"))
    named = re.findall(r"pip install '\.\[([\w,]+)\]'", readme)
    wanted = {extra for extras in named for extra in extras.split(",")}
    [installed] = re.findall(r"scripts/install\.py (llamacpp\S*)", makefile)
    assert wanted == set(installed.split(","))
    assert {"llamacpp", "hub", "server"} <= wanted


PIP_LOG = """\
Obtaining file:///home/me/foredraft
  Preparing editable metadata (pyproject.toml): started
  Preparing editable metadata (pyproject.toml): finished with status 'done'
Collecting xllamacpp
  Downloading xllamacpp-2026.10-cp311-abi3.whl (33.8 MB)
     ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━ 33.8/33.8 MB 82.6 MB/s eta 0:00:00
WARNING: Running pip as the 'root' user
Installing collected packages: xllamacpp, wcwidth, uvloop
"""


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (0, "starting"),
        (1, "Obtaining file:///home/me/foredraft"),
        (2, "compiling Foredraft's kernels for llama.cpp, if there is a C++ compiler"),
        (6, "Downloading xllamacpp-2026.10-cp311-abi3.whl (33.8 MB)"),
        (8, "installing 3 packages"),
    ],
)
def test_the_installation_says_what_takes_long(
    lines: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    step = importlib.import_module("install").current_step
    assert step("".join(PIP_LOG.splitlines(keepends=True)[:lines])) == says


def test_packaged_heads_are_kept_and_other_models_are_not() -> None:
    """What git ignores is not in a wheel either."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("no checkout of git")
    ignored = run("git", "-C", ROOT, "check-ignore", "src/foredraft/heads/0123.gguf", "model.gguf")
    assert ignored.stdout.split() == ["model.gguf"]
