"""A server that is killed in the middle of answers: nothing it keeps on disk is harmed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

import gguf_factory
from foredraft.server.settings_file import read_settings

SETTINGS = """\
default_model = "tiny"

[models.tiny]
path = "tiny.gguf"
threads = 1

# a comment that stays
"""
READY = re.compile(r" on (http://\S+?)/v1$")


@contextmanager
def served(settings: Path, cache: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A server in a process of its own: its address, and the process."""
    command = [sys.executable, "-m", "foredraft", "serve", "--config", str(settings), "--port", "0"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "FOREDRAFT_CACHE": str(cache)},
    )
    assert process.stdout is not None
    said: list[str] = []
    reader = threading.Thread(target=said.extend, args=(process.stdout,), daemon=True)
    try:
        for line in process.stdout:
            said.append(line)
            if found := READY.search(line.rstrip()):
                reader.start()  # a full pipe would stop the server
                yield found[1], process
                return
        pytest.fail("the server did not start:\n" + "".join(said))
    finally:
        process.kill()
        process.wait(20)
        if reader.ident:
            reader.join(20)
        process.stdout.close()


def answer(url: str, prompt: str) -> str:
    body = {"prompt": prompt, "max_tokens": 40, "temperature": 0}
    reply = httpx.post(f"{url}/v1/completions", json=body, timeout=60)
    assert reply.status_code == 200, reply.text
    text: str = reply.json()["choices"][0]["text"]
    return text


def test_kill_loses_no_settings_and_corrupts_no_store(tmp_path: Path) -> None:
    gguf_factory.tiny_llama(tmp_path / "tiny.gguf", ctx_train=2048)
    settings, cache = tmp_path / "server.toml", tmp_path / "cache"
    settings.write_text(SETTINGS)
    prompts = [f"the ferry left the island {number} times, the ferry left" for number in range(6)]
    texts: list[str] = []
    for kill in range(3):
        with served(settings, cache) as (url, process):
            now = [answer(url, prompt) for prompt in prompts]
            texts = texts or now
            assert now == texts, "what was remembered changed a text"
            body = {"prompt": "the", "max_tokens": 1500, "stream": True, "ignore_eos": True}
            with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as stream:
                lines = stream.iter_lines()
                for _ in range(1 + 5 * kill):
                    next(lines)
                process.send_signal(signal.SIGKILL)
                process.wait(20)
    assert settings.read_text() == SETTINGS
    assert read_settings(settings).default_model == "tiny"
    temporary = [path for path in cache.rglob("*") if path.suffix in (".tmp", ".part")]
    assert len(temporary) <= 3, temporary
