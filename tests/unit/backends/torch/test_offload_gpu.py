"""Layers streamed to a real CUDA device: the same bits, no more memory than reckoned, nothing left behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from foredraft.backends.torch import offload
from foredraft.backends.torch.loading import load_model
from foredraft.backends.torch.model import TorchModel
from foredraft.backends.torch.offload_budget import Needs, choose_streamed
from foredraft.backends.torch.offload_cuda import CudaDevice
from foredraft.config import ModelOptions
from foredraft.errors import CapacityError
from foredraft.types import Rows
from model_cases import text_tokens

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]

Make = Callable[..., Path]
PROMPT = text_tokens(200)
ALREADY_PINNED = 712
"""CUDA's cudaErrorHostMemoryAlreadyRegistered."""
WIDE = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "num_hidden_layers": 12,
}
"""Layers large enough that a copy takes longer than the calls that begin it."""


@pytest.fixture
def wide(folder: Make) -> Path:
    return folder("llama", **WIDE)


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    torch.cuda.empty_cache()
    yield
    torch.cuda.synchronize()


def load(path: Path, gpu_layers: int = -1, **options: Any) -> TorchModel:
    chosen = {"threads": 1, "probe": False, "context_length": 256, "sequences": 2, **options}
    return load_model(path, ModelOptions(gpu_layers=gpu_layers, **chosen))


def texts(model: TorchModel, forwards: int = 30) -> Any:
    """Logits of a prompt and of forwards of one to four rows one after the other, nothing between them."""
    found = [model.forward([Rows(0, 0, PROMPT[:60], 5)]).copy()]
    at = 60
    for number in range(forwards):
        rows = 1 + number % 4
        found.append(model.forward([Rows(0, at, PROMPT[at : at + rows], rows)]).copy())
        at += rows
    return np.concatenate(found)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("resident", [1, 5, 10, 11])
def test_streamed_layers_give_the_same_bits(wide: Path, resident: int, dtype: str) -> None:
    whole = load(wide, dtype=dtype)
    assert whole.info.settings["gpu_layers"] == "12 of 12"
    expected = texts(whole)
    whole.close()
    streamed = load(wide, resident, dtype=dtype)
    assert streamed.info.settings["gpu_layers"] == f"{resident} of 12"
    assert np.array_equal(texts(streamed), expected)
    streamed.close()


def test_layers_come_from_pinned_memory() -> None:
    """torch's `is_pinned` knows of its own allocator's memory only; the driver pins nothing twice."""
    device = CudaDevice()
    memory = device.host_bytes(1 << 20)
    code = int(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, 1))
    device._forget_error()
    assert code == ALREADY_PINNED


def test_a_small_device_is_not_asked_for_more_than_it_has(
    wide: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With room for about half of it the model and its largest forward stay within what was free."""
    rooms: list[int] = []

    def half(needs: Needs, free: int, *rest: Any) -> frozenset[int]:
        rooms.append(needs.with_streamed(frozenset(range(6))))
        return choose_streamed(needs, rooms[0], *rest)

    monkeypatch.setattr(offload, "choose_streamed", half)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    model = load(wide, dtype="bf16", context_length=1024)
    assert "streamed" in model.info.settings
    for start in (0, 512):
        model.forward([Rows(0, start, text_tokens(512), 129)])
    used = torch.cuda.max_memory_allocated() - before
    assert used <= rooms[0] + (64 << 20), "workspaces of cuBLAS are the reserve's"
    model.close()


def test_out_of_memory_in_a_forward_leaves_nothing_under_way(
    wide: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(wide, 3)
    expected = texts(model, 3)
    model.release(0)
    silu, calls = torch.nn.functional.silu, []

    def too_much(gate: Any) -> Any:
        calls.append(gate)
        if len(calls) == 7:
            torch.empty(1 << 50, dtype=torch.uint8, device=gate.device)
        return silu(gate)

    with monkeypatch.context() as patch:
        patch.setattr(torch.nn.functional, "silu", too_much)
        with pytest.raises(CapacityError):
            texts(model, 3)
    model.release(0)
    assert np.array_equal(texts(model, 3), expected)
    model.close()


def test_closing_gives_the_memory_back(wide: Path) -> None:
    before = torch.cuda.memory_allocated()
    model = load(wide, 3)
    texts(model, 2)
    model.close()
    del model
    assert torch.cuda.memory_allocated() <= before + (64 << 20), "workspaces of cuBLAS stay"
