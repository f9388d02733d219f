"""The clients that people use, against a server on the default model and small ones that think, see, embed
and rerank: whole answers, streams, tools, structured output and errors of each, and what else it has. Their
versions are pinned; each kind is installed where nothing else is.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import pytest

import embedder_factory
import gguf_factory
import gguf_vision
from thinking_cases import DEEPSEEK

CLIENTS = Path(__file__).parent / "clients"
PYTHON = {
    "openai": "requirements.txt",
    "anthropic": "requirements.txt",
    "litellm": "requirements.txt",
    "langchain": "requirements.txt",
    "langchainanthropic": "requirements.txt",
    "llamaindex": "requirements.txt",
    "instructor": "requirements.txt",
    "pydanticai": "requirements.txt",
    "llm": "requirements-llm.txt",
}
"""Each client, and what is installed for it: some cannot stand beside others."""
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
"""What every client has."""

SHOWS = ("thinking", "images", "cancel")
MORE = {
    "openai": (*SHOWS, "embeddings"),
    "anthropic": SHOWS,
    "litellm": (*SHOWS, "embeddings", "rerank"),
    "langchain": (*SHOWS, "embeddings"),
    "langchainanthropic": SHOWS,
    "llamaindex": (*SHOWS, "embeddings"),
    "llm": (*SHOWS, "embeddings"),
}
MORE_OF_NODE = {
    "openai": (*SHOWS, "embeddings"),
    "@anthropic-ai/sdk": SHOWS,
    "@ai-sdk/openai-compatible": (*SHOWS, "embeddings"),
    "@ai-sdk/openai": (*SHOWS, "embeddings"),
    "@ai-sdk/openai chat": ("images", "cancel", "embeddings"),
    "@ai-sdk/anthropic": SHOWS,
}
"""What some have beside that."""

SETTINGS = """\
default_model = "default"

[models.default]
path = "SmolLM2-135M-Instruct"
aliases = ["gpt-4o", "claude-opus-4-8", "x"]
context_length = 2048

[models.thinking]
path = "thinking.gguf"

[models.thinking.sampling]
reasoning_budget = 12

[models.seeing]
path = "seeing/tiny-qwen2vl.gguf"

[models.embedder]
path = "embedder.gguf"
aliases = ["text-embedding-3-small"]

[models.reranker]
path = "reranker.gguf"
"""
MOST_S = 3600.0
"""Seconds for all cases of one client: a fault is one that never ends."""

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server on the default model and some that are made here."""
    folder = tmp_path_factory.mktemp("models")
    gguf_factory.tiny_llama(folder / "thinking.gguf", ctx_train=2048, chat_template=DEEPSEEK)
    gguf_vision.qwen2vl(folder / "seeing")
    embedder_factory.bert_gguf(folder / "embedder.gguf", embedder_factory.bert())
    reranker = embedder_factory.bert("BertForSequenceClassification", num_labels=1)
    embedder_factory.bert_gguf(folder / "reranker.gguf", reranker, gguf.PoolingType.RANK)
    (folder / "settings.toml").write_text(SETTINGS)
    environment = {**os.environ, "FOREDRAFT_CACHE": str(tmp_path_factory.mktemp("cache"))}
    command = [sys.executable, "-m", "foredraft", "serve", "--port", "0", "--quiet"]
    command += ["--config", str(folder / "settings.toml")]
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
def python(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[str]]:
    """How a client in Python is run, in an environment that is made for what it needs."""

    @cache
    def interpreter(needed: str) -> str:
        folder = tmp_path_factory.mktemp("python")
        venv.create(folder, with_pip=True)
        program = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
        wanted = str(CLIENTS / "python" / needed)
        subprocess.run([program, "-m", "pip", "install", "-q", "-r", wanted], check=True)
        return str(program)

    return lambda client: [interpreter(PYTHON[client]), str(CLIENTS / "python" / "clients.py")]


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


def check(said: dict[str, Any], case: str, cases: Collection[str]) -> None:
    assert set(cases) == set(said), said
    assert said[case] is None, said[case]


def each(clients: Iterable[str], more: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
    """Each client with each of its cases."""
    return [(client, case) for client in clients for case in (*CASES, *more.get(client, ()))]


@pytest.mark.parametrize(("client", "case"), each(PYTHON, MORE))
def test_clients_in_python(url: str, python: Callable[[str], list[str]], client: str, case: str) -> None:
    check(_said((*python(client), url, client)), case, (*CASES, *MORE.get(client, ())))


@pytest.mark.parametrize(("client", "case"), each(NODE, MORE_OF_NODE))
def test_clients_in_node(url: str, node: list[str], client: str, case: str) -> None:
    check(_said((*node, url, client)), case, (*CASES, *MORE_OF_NODE.get(client, ())))
