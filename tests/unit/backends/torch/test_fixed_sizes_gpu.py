"""Forwards recorded as CUDA graphs: what is replayed is what would be computed, whatever it is beside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from foredraft.backends.torch.fixed_sizes import FixedSizeModel
from foredraft.backends.torch.loading import load_model
from foredraft.backends.torch.model import TorchModel
from foredraft.backends.torch.offload_cuda import CudaDevice
from foredraft.config import ModelOptions
from foredraft.types import Rows
from model_cases import text_tokens

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]

Make = Callable[..., Path]
TEXT = text_tokens(200)
WIDE = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "num_hidden_layers": 4,
}


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    torch.cuda.empty_cache()
    yield
    torch.cuda.synchronize()


def load(path: Path, dtype: str = "bf16", **options: object) -> TorchModel:
    chosen = {"threads": 1, "probe": False, "context_length": 512, "sequences": 3, **options}
    return load_model(path, ModelOptions(dtype=dtype, **chosen))  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_rows_have_the_same_bits_whatever_they_are_beside(
    folder: Make, architecture: str, dtype: str
) -> None:
    model = load(folder(architecture, **WIDE), dtype)
    assert isinstance(model, FixedSizeModel)
    model.forward([Rows(0, 0, TEXT[:100], 0), Rows(1, 0, TEXT[50:90], 0)])
    single = np.concatenate([model.forward([Rows(0, 100 + i, TEXT[100 + i : 101 + i], 1)]) for i in range(9)])
    for count in range(1, 10):
        model.truncate(0, 100)
        assert np.array_equal(model.forward([Rows(0, 100, TEXT[100 : 100 + count], count)]), single[:count])
    model.truncate(0, 100)
    beside = [Rows(1, 40, TEXT[90:97], 7), Rows(0, 100, TEXT[100:105], 5), Rows(2, 0, TEXT[:150], 1)]
    assert np.array_equal(model.forward(beside)[7:12], single[:5])
    model.truncate(0, 100)
    tree = model.forward([Rows(0, 100, (*TEXT[100:102], 7, TEXT[102]), 4, (-1, 0, 0, 1))])
    assert np.array_equal(tree[[0, 1, 3]], single[:3])
    model.keep_path(0, 100, [0, 1, 3])
    assert np.array_equal(model.forward([Rows(0, 103, TEXT[103:106], 3)]), single[3:6])
    model.close()


def test_what_is_replayed_is_what_would_be_computed(folder: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder("llama", **WIDE)
    found = []
    for recorded in (True, False):
        if not recorded:
            monkeypatch.setattr(CudaDevice, "by_rows", lambda *_, **__: None)
        model = load(path, "fp32")
        assert isinstance(model, FixedSizeModel) is recorded
        model.forward([Rows(0, 0, TEXT[:100], 0)])
        found.append(model.forward([Rows(0, 100, TEXT[100:107], 7)]).copy())
        model.close()
    assert np.allclose(found[0], found[1], atol=1e-4)


def test_the_bits_of_a_recorded_model_are_measured_as_exact(folder: Make) -> None:
    model = load(folder("llama", **WIDE), context_length=1024, probe=True)
    assert model.capabilities.batch_invariant, model.capabilities.invariance_note
    model.close()


def test_closing_gives_the_memory_back(folder: Make) -> None:
    path = folder("llama", **WIDE)
    before = torch.cuda.memory_allocated()
    model = load(path)
    model.forward([Rows(0, 0, TEXT[:3], 1)])
    model.close()
    del model
    assert torch.cuda.memory_allocated() <= before + (64 << 20), "workspaces of cuBLAS stay"
