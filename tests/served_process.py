"""`foredraft serve` in a process of its own, around a tiny model with random weights."""

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

SETTINGS = """\
default_model = "tiny"

[models.tiny]
path = "tiny.gguf"
threads = 1

# a comment that stays
"""
READY = re.compile(r"^Serving .* on (http://\S+?)/v1$|^Serving (http://\S+?)/v1, but")


@contextmanager
def served(settings: Path, cache: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A server in a process of its own: its address, and the process. Without a file of settings it works in
    the folder where that would be.
    """
    command = [sys.executable, "-m", "foredraft", "serve", "--port", "0"]
    command += ["--config", str(settings)] if settings.exists() else []
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=settings.parent,
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
                yield found[1] or found[2], process
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


def kill(process: subprocess.Popen[str]) -> None:
    """End it as a power cut would, and wait until it is gone."""
    process.send_signal(signal.SIGKILL)
    process.wait(20)
