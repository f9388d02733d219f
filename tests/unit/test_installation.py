"""A hint names the command that works for how this copy was installed."""

from __future__ import annotations

import json
import sys
from importlib.metadata import distribution
from pathlib import Path
from types import SimpleNamespace

import pytest

from foredraft import installation
from foredraft.installation import Installation

PYTHON = "/venv/bin/python"
INDEX = Installation("pip", Path("/venv"), PYTHON)
CHECKOUT = Installation("pip", Path("/venv"), PYTHON, "file:///src/fore%20draft", editable=True)
WHEEL = Installation("pip", Path("/venv"), PYTHON, "file:///tmp/foredraft-0.1.0-py3-none-any.whl")


@pytest.mark.parametrize(
    ("how", "extra", "other"),
    [
        (INDEX, f"{PYTHON} -m pip install 'foredraft[hub]'", f"{PYTHON} -m pip install --upgrade gguf"),
        (
            CHECKOUT,
            f"{PYTHON} -m pip install --editable '/src/fore draft[hub]'",
            f"{PYTHON} -m pip install --upgrade gguf",
        ),
        (
            WHEEL,
            f"{PYTHON} -m pip install 'foredraft[hub] @ file:///tmp/foredraft-0.1.0-py3-none-any.whl'",
            f"{PYTHON} -m pip install --upgrade gguf",
        ),
        (
            Installation("pipx", Path("/home/me/pipx/venvs/foredraft-2"), PYTHON),
            "pipx runpip foredraft-2 install 'foredraft[hub]'",
            "pipx runpip foredraft-2 install --upgrade gguf",
        ),
        (
            Installation("uv tool", Path("/uv"), PYTHON, extras=("server", "demo")),
            "uv tool install --force 'foredraft[demo,hub,server]'",
            f"uv pip install --python {PYTHON} --upgrade gguf",
        ),
        (
            Installation("uv pip", Path("/venv"), PYTHON),
            f"uv pip install --python {PYTHON} 'foredraft[hub]'",
            f"uv pip install --python {PYTHON} --upgrade gguf",
        ),
    ],
)
def test_the_command_fits_the_installation(how: Installation, extra: str, other: str) -> None:
    assert how.add_extra("hub") == extra
    assert how.add("--upgrade", "gguf") == other


def noted(monkeypatch: pytest.MonkeyPatch, origin: object) -> Installation:
    note = None if origin is None else json.dumps(origin)
    monkeypatch.setattr(installation, "distribution", lambda _: SimpleNamespace(read_text=lambda _: note))
    return installation.this()


def test_the_origin_is_read_from_the_installed_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = noted(monkeypatch, {"url": WHEEL.source, "archive_info": {}})
    assert (wheel.source, wheel.editable) == (WHEEL.source, False)
    checkout = noted(monkeypatch, {"url": "file:///src", "dir_info": {"editable": True}})
    assert (checkout.source, checkout.editable) == ("file:///src", True)
    commit = noted(monkeypatch, {"url": "https://host/it.git", "vcs_info": {"vcs": "git", "commit_id": "ab"}})
    assert commit.source == "git+https://host/it.git@ab"
    assert noted(monkeypatch, None).source is None


def test_the_tool_is_known_by_what_it_leaves_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert installation.this().tool == "pip"
    monkeypatch.setattr(installation, "find_spec", lambda _: None)
    assert installation.this().tool == "uv pip"
    receipt = tmp_path / "uv-receipt.toml"
    receipt.write_text('[tool]\nrequirements = [{ name = "foredraft", extras = ["server"] }]\n')
    assert (installation.this().tool, installation.this().extras) == ("uv tool", ("server",))
    receipt.write_text("tool = 1")
    assert installation.this().extras == ()
    (tmp_path / "pipx_metadata.json").write_text("{}")
    assert installation.this().tool == "pipx"


def test_this_copy_says_where_it_came_from() -> None:
    url = json.loads(distribution("foredraft").read_text("direct_url.json") or "{}").get("url")
    assert installation.this().source == url
