"""Memory that a server does not keep. Each in a process of its own: what the C library was told stays."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from foredraft.server import run
from foredraft.server.allocator import LARGE
from foredraft.server.settings import ModelSettings, ServerSettings

BLOCKS = f"""
import ctypes
from foredraft.server.allocator import give_back_large_blocks

class Info(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
libc.mallinfo2.restype = Info
TOLD

def mapped(size):
    before = libc.mallinfo2().hblks
    block = libc.malloc(size)
    found = libc.mallinfo2().hblks - before
    libc.free(block)
    return found

print(*[mapped({2 * LARGE}) for _ in range(3)])
"""


def blocks(told: str) -> list[str]:
    """Whether each of three blocks, one after the other, was mapped."""
    command = [sys.executable, "-c", BLOCKS.replace("TOLD", told)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="not glibc 2.33")
def test_a_large_block_goes_back_however_often_there_is_one() -> None:
    assert blocks("") == ["1", "0", "0"], "what glibc does by itself"
    assert blocks("assert give_back_large_blocks()") == ["1", "1", "1"]


def test_a_server_asks_for_it_before_it_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked() -> bool:
        raise InterruptedError

    monkeypatch.setattr(run, "give_back_large_blocks", asked)
    settings = ServerSettings(models={"absent": ModelSettings(path="absent")}, port=0)
    with pytest.raises(InterruptedError):
        run.run_server(settings, listening=lambda *_: None)
