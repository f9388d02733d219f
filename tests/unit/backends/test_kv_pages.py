"""KV cells that hold nothing take no memory, and nobody sees it in the results."""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import gguf_factory
from foredraft.backends.llamacpp import LlamaCppBackend, kv_pages, log
from foredraft.backends.llamacpp.kv_pages import Buffer
from foredraft.config import ModelOptions, Rope
from foredraft.types import Rows
from llamacpp_cases import opened

SEQUENCES, CONTEXT = 4, 8192
needed = pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives pages back at once")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf_factory.tiny_llama(tmp_path_factory.mktemp("gguf") / "tiny.gguf", ctx_train=CONTEXT)


def resident(buffer: Buffer) -> int:
    """Bytes of a buffer that are in memory."""
    first = -(-buffer.address // mmap.PAGESIZE) * mmap.PAGESIZE
    pages = (buffer.address + buffer.size - first) // mmap.PAGESIZE
    found = (ctypes.c_ubyte * pages)()
    call = ctypes.CDLL(None, use_errno=True).mincore
    assert call(ctypes.c_void_p(first), ctypes.c_size_t(pages * mmap.PAGESIZE), found) == 0
    return sum(byte & 1 for byte in found) * mmap.PAGESIZE


class Watched:
    """What `give_back` was called with."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.buffers: list[Buffer] = []
        self.bytes = 0
        real = kv_pages.give_back

        def give_back(made: Sequence[Buffer], lines: Sequence[str]) -> int:
            self.buffers = [buffer for buffer in made if kv_pages._holds_cells(buffer, lines)]
            self.bytes = real(made, lines)
            return self.bytes

        monkeypatch.setattr(kv_pages, "give_back", give_back)


@needed
def test_a_context_takes_memory_as_cells_are_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)
    with opened(path, sequences=SEQUENCES) as model:
        [cells] = watched.buffers
        reserved = model.info.memory["kv_cache"]
        assert abs(cells.size - reserved) < 1 << 20
        assert cells.size >= 1 << 20
        assert resident(cells) <= 4 * mmap.PAGESIZE
        for seq in range(SEQUENCES):
            model.forward([Rows(seq, 0, [7] * 100, 1)])
        assert 0 < resident(cells) < cells.size / 4


@needed
def test_loading_takes_no_memory_for_cells_either(path: Path) -> None:
    asked = ModelOptions(
        context_length=2_000_000, rope=Rope(freq_base=1e6), threads=1, gpu_layers=0, probe=False
    )
    LlamaCppBackend().load(path, replace(asked, context_length=512)).close()  # what is loaded once
    Path("/proc/self/clear_refs").write_text("5")
    before = peak()
    model = LlamaCppBackend().load(path, asked)
    reserved = model.info.memory["kv_cache"]
    model.close()
    assert reserved > 200 << 20
    listed = 60 * model.info.context_length  # what llama.cpp notes of each cell
    assert peak() - before < reserved / 16 + listed < reserved / 2


def peak() -> int:
    """The most bytes of this process in memory since `clear_refs`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM:")).split()[1])


def computed(path: Path) -> list[np.ndarray]:
    """Logits of forwards with what else is done to sequences between them."""
    found: list[np.ndarray] = []
    with opened(path, sequences=SEQUENCES) as model:
        for turn in range(3):
            for seq in (0, 3, 1):
                tokens = [(13 * i + seq) % 300 for i in range(40 + 9 * turn)]
                found.append(model.forward([Rows(seq, model.length(seq), tokens, 3)]).copy())
            model.truncate(0, 11)
            model.restore(2, model.snapshot(3))
            model.release(1)
            batch = [Rows(seq, model.length(seq), [5, 6], 2) for seq in (0, 2, 3)]
            found.append(model.forward(batch).copy())
    return found


@needed
def test_logits_are_the_same_bits(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = computed(path)
    monkeypatch.setattr(kv_pages, "give_back", lambda *_: 0)
    full = computed(path)
    assert all(np.array_equal(one, other) for one, other in zip(empty, full, strict=True))


@needed
def test_only_what_the_log_says_cells_are_in_is_given_back() -> None:
    memory = mmap.mmap(-1, 4 << 20, flags=mmap.MAP_PRIVATE)
    memory.write(b"\1" * (4 << 20))
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    buffer = Buffer(address, 4 << 20, logged=1)
    four, five = (f"x: CPU KV buffer size = {size:8.2f} MiB" for size in (4, 5))
    for lines in ([], ["first"], ["first", five], [four], [four, "second"]):
        assert kv_pages.give_back([buffer], lines) == 0
    assert memory[:4] == b"\1\1\1\1"
    assert kv_pages.give_back([buffer], ["first", four]) == 4 << 20
    assert memory[:4] == bytes(4)


def test_what_llama_cpp_says_it_allocated_is_added_up() -> None:
    lines = [
        "load_tensors:   CPU_Mapped model buffer size =    92.10 MiB",
        "load_tensors:   CPU_REPACK model buffer size =    91.97 MiB",
        "llama_context:        CPU  output buffer size =     0.75 MiB",
        "llama_kv_cache:        CPU KV buffer size =   700.00 MiB",
        "llama_kv_cache:        CPU KV buffer size =    20.00 MiB",
        "llama_memory_recurrent:        CPU RS buffer size =    10.00 MiB",
        "sched_reserve:        CPU compute buffer size =    98.25 MiB",
        "llama_kv_cache: size =  720.00 MiB (  8192 cells,  30 layers,  4/4 seqs)",
    ]
    mib = 1 << 20
    assert log.buffer_sizes(lines) == {
        "weights_mapped": round(92.10 * mib),
        "weights": round(91.97 * mib),
        "compute": 99 * mib,
        "kv_cache": 730 * mib,
    }
