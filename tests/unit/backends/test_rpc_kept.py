"""Weights that `rpc-server --cache` keeps: they are what was sent, or are sent again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from foredraft import Engine
from gguf_factory import tiny_llama
from rpc_process import needs_library, rpc_server

pytestmark = needs_library

PROMPT = "the cat sat on the mat. the cat"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One whose output layer is large enough to be kept: over 10 MB."""
    return tiny_llama(tmp_path_factory.mktemp("models") / "wide.gguf", vocab=12_000, embd=256)


def text_of(path: Path, cache: Path, host: str | None = None) -> str:
    hosts = [host] if host else []
    with Engine.load(
        path, speculate="off", threads=1, cache_dir=cache, context_length=128, rpc=hosts, probe=False
    ) as engine:
        return engine.generate(PROMPT, max_tokens=24, temperature=0).text


def name_of(content: bytes) -> str:
    """The hash that names it: FNV-1a with 64 bits."""
    value = 0xCBF29CE484222325
    for byte in content:
        value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    return f"{value:016x}"


def cut(file: Path) -> None:
    """As a disk that was full, or a process that was killed."""
    file.write_bytes(file.read_bytes()[:1_000_000])


def rot(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[5_000_000:5_400_000] = bytes(range(250)) * 1600
    file.write_bytes(content)


def empty(file: Path) -> None:
    file.write_bytes(b"")


def test_weights_are_kept_and_read(model: Path, tmp_path: Path) -> None:
    expected = text_of(model, tmp_path)
    with rpc_server(tmp_path, "--port", "0", "--cache") as (host, _):
        assert text_of(model, tmp_path, host) == expected
        [kept] = (tmp_path / "rpc").iterdir()
        written = kept.stat().st_mtime_ns
        assert kept.name == name_of(kept.read_bytes())
        assert text_of(model, tmp_path, host) == expected
        assert kept.stat().st_mtime_ns == written


@pytest.mark.parametrize("spoil", [cut, rot, empty])
def test_a_file_that_is_not_what_its_name_says_is_written_again(
    model: Path, tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    expected = text_of(model, tmp_path)
    with rpc_server(tmp_path, "--port", "0", "--cache") as (host, _):
        text_of(model, tmp_path, host)
        [kept] = (tmp_path / "rpc").iterdir()
        content = kept.read_bytes()
        spoil(kept)
        assert kept.read_bytes() != content
        assert text_of(model, tmp_path, host) == expected
        assert list((tmp_path / "rpc").iterdir()) == [kept]
        assert kept.read_bytes() == content


def test_a_disk_that_is_full_keeps_nothing_and_costs_nothing_else(model: Path, tmp_path: Path) -> None:
    expected = text_of(model, tmp_path)
    limited = ["sh", "-c", 'ulimit -f 4000; exec "$@"', "sh"]  # larger files cannot be written
    with rpc_server(tmp_path, "--port", "0", "--cache", before=limited) as (host, process):
        for _ in range(2):
            assert text_of(model, tmp_path, host) == expected
        assert list((tmp_path / "rpc").iterdir()) == []
        process.kill()
        assert process.stderr is not None
        assert "Weights are not kept in" in process.stderr.read()


def test_what_a_killed_process_left_is_cleared_away(tmp_path: Path) -> None:
    folder = tmp_path / "rpc"
    folder.mkdir()
    (folder / "0123456789abcdef.4711").write_bytes(b"half")
    (folder / "0123456789abcdef").write_bytes(b"whole")
    with rpc_server(tmp_path, "--port", "0", "--cache"):
        assert [file.name for file in folder.iterdir()] == ["0123456789abcdef"]


def test_a_cache_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "rpc").write_bytes(b"")
    refused = pytest.raises(pytest.fail.Exception, match="Weights cannot be kept in")
    with refused, rpc_server(tmp_path, "--port", "0", "--cache"):
        pass
