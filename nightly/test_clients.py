"""The clients that people use, against a server on the default model: whole answers, streams, tools,
structured output and errors of each. Their versions are pinned; each kind is installed where nothing else is.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

CLIENTS = Path(__file__).parent / "clients"
PYTHON = ("openai", "anthropic", "litellm", "langchain", "instructor", "pydanticai")
NODE = (
    "openai",
    "@anthropic-ai/sdk",
    "@ai-sdk/openai-compatible",
    "@ai-sdk/openai",
    "@ai-sdk/openai chat",
    "@ai-sdk/anthropic",
    "@openai/agents",
    "@openai/agents chat",
)
CASES = ("whole", "stream", "tools", "structured", "errors")
MOST_S = 3600.0
"""Seconds for all cases of one client: a fault is one that never ends."""

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server on the default model."""
    environment = {**os.environ, "FOREDRAFT_CACHE": str(tmp_path_factory.mktemp("cache"))}
    command = [sys.executable, "-m", "foredraft", "serve", "--port", "0", "--ctx", "2048", "--quiet"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    assert server.stderr is not None
    try:
        yield next(
            line.split()[-1].removesuffix("/v1") for line in server.stderr if line.startswith("Serving")
        )
    finally:
        server.terminate()
        server.wait(60)
        server.stderr.close()


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """How Python's clients are run, in an environment of their own."""
    folder = tmp_path_factory.mktemp("python")
    venv.create(folder, with_pip=True)
    interpreter = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    needed = str(CLIENTS / "python" / "requirements.txt")
    subprocess.run([interpreter, "-m", "pip", "install", "-q", "-r", needed], check=True)
    return [str(interpreter), str(CLIENTS / "python" / "clients.py")]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """How Node's clients are run, installed by npm as the lock file says."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("Node is not installed: its clients need node and npm")
    folder = tmp_path_factory.mktemp("node")
    for name in ("package.json", "package-lock.json", "clients.mjs"):
        shutil.copy(CLIENTS / "node" / name, folder)
    subprocess.run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=folder, check=True)
    return ["node", str(folder / "clients.mjs")]


@cache
def _said(command: tuple[str, ...]) -> dict[str, Any]:
    """What each case of a client came to."""
    quiet = {"AI_SDK_LOG_WARNINGS": "false", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        command, env={**environment, **quiet}, capture_output=True, text=True, timeout=MOST_S, check=False
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {line["case"]: line["error"] for line in lines} or {"nothing": done.stderr[-2000:]}


def check(said: dict[str, Any], case: str) -> None:
    assert set(CASES) == set(said), said
    assert said[case] is None, said[case]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("client", PYTHON)
def test_clients_in_python(url: str, python: list[str], client: str, case: str) -> None:
    check(_said((*python, url, client)), case)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("client", NODE)
def test_clients_in_node(url: str, node: list[str], client: str, case: str) -> None:
    check(_said((*node, url, client)), case)
