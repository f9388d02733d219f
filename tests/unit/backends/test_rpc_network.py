"""A host in a network namespace of its own: another machine, as far as the network goes."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from foredraft import Engine
from foredraft.backends.llamacpp.rpc.library import library
from gguf_factory import tiny_llama
from rpc_process import needs_library, rpc_server

SPACE, CABLE, ITS_END = "foredraft-test", "fdtest0", "fdtest1"
HERE, THERE = "10.99.8.1", "10.99.8.2"
PROMPT = "the cat sat on the mat. the cat"


def ip(*words: str) -> bool:
    return subprocess.run(["ip", *words], capture_output=True, check=False).returncode == 0


@pytest.fixture
def other_machine() -> Iterator[None]:
    """The namespace, with a cable to it."""
    if os.name != "posix" or os.geteuid() or not shutil.which("ip"):
        pytest.skip("network namespaces need root, and ip")
    ip("netns", "del", SPACE)
    try:
        made = ip("netns", "add", SPACE)
        made &= ip("link", "add", CABLE, "type", "veth", "peer", "name", ITS_END, "netns", SPACE)
        made &= ip("addr", "add", f"{HERE}/24", "dev", CABLE) and ip("link", "set", CABLE, "up")
        made &= ip("-n", SPACE, "addr", "add", f"{THERE}/24", "dev", ITS_END)
        made &= ip("-n", SPACE, "link", "set", ITS_END, "up")
        if not made:
            pytest.skip("no network namespaces can be made here")
        yield
    finally:
        ip("netns", "del", SPACE)


@needs_library
@pytest.mark.usefixtures("other_machine")
def test_a_cable_that_is_pulled_is_noticed(tmp_path: Path) -> None:
    tiny = tiny_llama(tmp_path / "tiny.gguf", layers=4)
    there = rpc_server(tmp_path, "--host", THERE, "--port", "50052", before=["ip", "netns", "exec", SPACE])
    library(None).patience(3000)
    try:
        with (
            there as (host, _),
            Engine.load(
                tiny, threads=1, cache_dir=tmp_path, context_length=256, rpc=host, gpu_layers=2
            ) as engine,
        ):
            assert host == f"{THERE}:50052"
            text = engine.generate(PROMPT, max_tokens=16, temperature=0).text
            with Engine.load(tiny, threads=1, cache_dir=tmp_path, context_length=256) as alone:
                assert alone.generate(PROMPT, max_tokens=16, temperature=0).text == text
            assert ip("link", "set", CABLE, "down")
            began = time.monotonic()
            answer = engine.generate(PROMPT + " sat", max_tokens=16, temperature=0)
            assert f"The RPC host {host} was lost" in (answer.error or "")
            assert time.monotonic() - began < 15
    finally:
        library(None).patience(15000)
