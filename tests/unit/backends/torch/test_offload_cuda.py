"""What CUDA is told, and in which order, without a GPU: streams and events that write down their calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from mmap import PAGESIZE
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from foredraft.backends.torch.offload_cuda import RESERVE, CudaCopier, CudaDevice

CPU = torch.device("cpu")


class FakeCuda:
    """In the place of `torch.cuda`. `calls` has what happens on each stream, in order."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.main = FakeStream(self, "compute")
        self.on = self.main
        self.events = 0
        self.pinned: dict[int, int] = {}
        self.code = 0

    def Stream(self, device: Any) -> FakeStream:  # noqa: N802 - torch's name
        return FakeStream(self, "copy")

    def Event(self) -> FakeEvent:  # noqa: N802 - torch's name
        self.events += 1
        return FakeEvent(self, ("arrived 0", "arrived 1", "computed 0", "computed 1")[self.events - 1])

    def current_stream(self, device: Any) -> FakeStream:
        return self.on

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        before, self.on = self.on, stream
        yield
        self.on = before

    def mem_get_info(self, device: Any) -> tuple[int, int]:
        return 3 * RESERVE, 8 * RESERVE

    def memory_reserved(self, device: Any) -> int:
        return 500

    def memory_allocated(self, device: Any) -> int:
        return 100

    def cudart(self) -> Any:
        return SimpleNamespace(cudaHostRegister=self.pin, cudaHostUnregister=self.pinned.pop)

    def pin(self, pointer: int, size: int, flags: int) -> int:
        if self.code == 0:
            self.pinned[pointer] = size
        return self.code


class FakeStream:
    def __init__(self, cuda: FakeCuda, name: str) -> None:
        self.cuda, self.name = cuda, name

    def wait_event(self, event: FakeEvent) -> None:
        self.cuda.calls.append(f"{self.name}: wait for {event.name}")

    def synchronize(self) -> None:
        self.cuda.calls.append(f"{self.name}: synchronize")


class FakeEvent:
    def __init__(self, cuda: FakeCuda, name: str) -> None:
        self.cuda, self.name = cuda, name

    def record(self, stream: FakeStream) -> None:
        self.cuda.calls.append(f"{stream.name}: {self.name}")


class FakeBuffer:
    """A buffer that says on which stream it is written to."""

    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda = cuda

    def __getitem__(self, part: slice) -> FakeBuffer:
        self.part = part
        return self

    def copy_(self, source: Any, *, non_blocking: bool) -> None:
        assert non_blocking
        self.cuda.calls.append(f"{self.cuda.on.name}: copy {self.part.stop} bytes")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    monkeypatch.setattr(torch, "cuda", fake)
    return fake


def test_a_copy_waits_for_computing_and_computing_for_the_copy(cuda: FakeCuda) -> None:
    copier = CudaCopier(CPU, 64, 2)
    assert cuda.calls == ["compute: computed 0", "compute: computed 1"], "of what had the memory before"
    cuda.calls.clear()
    copier.buffers[:] = [FakeBuffer(cuda), FakeBuffer(cuda)]
    copier.start(1, torch.zeros(48, dtype=torch.uint8))
    copier.wait(1)
    copier.computed(1)
    assert cuda.calls == [
        "copy: wait for computed 1",
        "copy: copy 48 bytes",
        "copy: arrived 1",
        "compute: wait for arrived 1",
        "compute: computed 1",
    ], "and the processor waits for neither"


def test_settling_waits_for_both_streams(cuda: FakeCuda) -> None:
    copier = CudaCopier(CPU, 64, 2)
    cuda.calls.clear()
    copier.settle()
    assert cuda.calls == ["compute: synchronize", "copy: synchronize"]
    copier.close()
    assert cuda.calls[2:] == cuda.calls[:2]
    assert copier.buffers == []


def test_free_memory_is_the_drivers_and_torchs_less_what_libraries_take(cuda: FakeCuda) -> None:
    assert CudaDevice().free() == 2 * RESERVE + 400


def test_memory_is_pinned_as_long_as_it_is_held(cuda: FakeCuda) -> None:
    first, second = CudaDevice().host_bytes(1000), CudaDevice().host_bytes(PAGESIZE + 1)
    assert cuda.pinned == {first.data_ptr(): PAGESIZE, second.data_ptr(): 2 * PAGESIZE}
    assert all(pointer % PAGESIZE == 0 for pointer in cuda.pinned), "no page is pinned twice"
    assert (first.dtype, len(first), len(second)) == (torch.uint8, 1000, PAGESIZE + 1)
    del first
    assert list(cuda.pinned) == [second.data_ptr()]
    del second
    assert cuda.pinned == {}


def test_where_memory_cannot_be_pinned_it_is_said_and_used(
    cuda: FakeCuda, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CudaDevice, "device", CPU)
    cuda.code = 2
    assert len(CudaDevice().host_bytes(1000)) == 1000
    assert "cannot be pinned (CUDA error 2)" in caplog.text
    assert cuda.pinned == {}
