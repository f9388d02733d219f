"""Open WebUI as its users start it, against a server whose model says what a script tells it. It is installed
where nothing else is, without PyTorch, which it needs for embeddings of its own only, and reaches nothing but
that server.
"""

from __future__ import annotations

import base64
import io
import json
import os
import socket
import subprocess
import time
import venv
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image as Pillow

from agent_server import SLOWLY, AgentServer, acting, play, thought
from fake_embedder import FakeEmbedder
from http_server import serving

VERSION = "0.12.4"
INSTALL_S, START_S, ANSWER_S = 600.0, 300.0, 60.0
END_S = 10.0
"""Seconds in which a request ends after its reader has gone."""

LEFT_OUT = ("torch", "torchvision")
SAID = {
    "What is two and two?": [thought("Two and two, I add them.") + "It is four."],
    "What colour is this?": ["It is red."],
    "Tell me without end": [SLOWLY + "and so on, " * 1000],
}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command, installed."""
    folder = tmp_path_factory.mktemp("open-webui")
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    without = folder / "without.txt"
    without.write_text("".join(f"{name}; python_version < '3'\n" for name in LEFT_OUT))
    done = subprocess.run([python, "-m", "pip", "install", "-q", "uv"], check=False, timeout=INSTALL_S)
    if not done.returncode:
        command = [str(folder / "bin" / "uv"), "pip", "install", "-q", "--python", str(python)]
        command += ["--override", str(without)]
        done = subprocess.run([*command, f"open-webui=={VERSION}"], check=False, timeout=INSTALL_S)
    if done.returncode:
        pytest.skip(f"Open WebUI {VERSION} cannot be installed")
    return folder / "bin" / "open-webui"


@dataclass(frozen=True, slots=True)
class Page:
    """Open WebUI with a user signed in, and the server and the embedding model that it asks."""

    client: httpx.Client
    server: AgentServer
    embedder: FakeEmbedder

    def ask(self, content: object) -> Iterator[dict[str, Any]]:
        """The deltas of a streamed answer."""
        body = {"model": "default", "stream": True, "messages": [{"role": "user", "content": content}]}
        with self.client.stream("POST", "/api/chat/completions", json=body) as answer:
            assert answer.status_code == 200, answer.read()
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    for choice in json.loads(line.removeprefix("data: ")).get("choices", ()):
                        yield choice["delta"]


@pytest.fixture(scope="module")
def page(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """Started, and its first user signed up, who is its administrator."""
    home = tmp_path_factory.mktemp("home")
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    embedder = FakeEmbedder()
    with (
        acting(play(SAID), "default") as server,
        serving("other", embedders={"embedder": embedder}) as embedding,
        (home / "log").open("w") as log,
    ):
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        environment = {
            **kept,
            "HOME": str(home),
            "DATA_DIR": str(home / "data"),
            "OPENAI_API_BASE_URL": f"{server.url}/v1",
            "OPENAI_API_KEY": "none",
            "ENABLE_OLLAMA_API": "False",
            "WEBUI_SECRET_KEY": "of a test",
            "OFFLINE_MODE": "true",
            "HF_HUB_OFFLINE": "1",
            "DO_NOT_TRACK": "true",
            "SCARF_NO_ANALYTICS": "true",
            "ANONYMIZED_TELEMETRY": "false",
            "RAG_EMBEDDING_ENGINE": "openai",
            "RAG_EMBEDDING_MODEL": "embedder",
            "RAG_OPENAI_API_BASE_URL": f"{embedding.url}/v1",
            "RAG_OPENAI_API_KEY": "none",
        }
        command = [str(program), "serve", "--host", "127.0.0.1", "--port", str(port)]
        process = subprocess.Popen(command, env=environment, cwd=home, stdout=log, stderr=log)
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=ANSWER_S) as client:
                _until_started(client, process, home / "log")
                user = {"name": "A", "email": "a@example.com", "password": "of-A-test-1"}
                signed = client.post("/api/v1/auths/signup", json=user)
                assert signed.status_code == 200, signed.text
                client.headers["Authorization"] = f"Bearer {signed.json()['token']}"
                assert "default" in [model["id"] for model in client.get("/api/models").json()["data"]]
                yield Page(client, server, embedder)
        finally:
            process.terminate()
            process.wait(60)


def _until_started(client: httpx.Client, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            if client.get("/health").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(1)
    pytest.fail(f"it did not start within {START_S:.0f} s: {log.read_text()[-3000:]}")


def test_an_answer_comes_as_it_is_written_with_its_thought_apart(page: Page) -> None:
    deltas = list(page.ask("What is two and two?"))
    assert "".join(delta.get("content") or "" for delta in deltas) == "It is four."
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == "Two and two, I add them."
    assert sum(bool(delta.get("content")) for delta in deltas) > 1
    assert not page.server.refused()


def test_a_picture_reaches_the_model(page: Page) -> None:
    written = io.BytesIO()
    Pillow.new("RGB", (16, 16), "red").save(written, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(written.getvalue()).decode()}"
    asked = [
        {"type": "text", "text": "What colour is this?"},
        {"type": "image_url", "image_url": {"url": url}},
    ]
    seen = page.server.images
    assert "".join(delta.get("content") or "" for delta in page.ask(asked)) == "It is red."
    assert page.server.images == seen + 1
    assert not page.server.refused()


def test_what_is_uploaded_is_embedded(page: Page) -> None:
    words = "The parrot is called Ada."
    sent = page.client.post("/api/v1/files/", files={"file": ("parrot.txt", words, "text/plain")})
    assert sent.status_code == 200, sent.text
    end = time.monotonic() + ANSWER_S
    while not any(words in text for batch in page.embedder.batches for text in batch):
        assert time.monotonic() < end, page.client.get(f"/api/v1/files/{sent.json()['id']}").text
        time.sleep(0.5)


def test_an_answer_that_is_not_read_any_more_ends(page: Page) -> None:
    answer = page.ask("Tell me without end")
    page.server.until_idle()
    assert next(delta for delta in answer if delta.get("content"))
    page.server.until_it_writes(ANSWER_S)
    answer.close()  # type: ignore[attr-defined]
    page.server.until_idle(END_S)
    assert not page.server.refused()
