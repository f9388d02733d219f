"""Batches of fixed sizes in a whole model: what a row computes is its own affair. A processor stands for the
GPU, and attention written out for Triton's kernels.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import torch_factory
from foredraft.backends.torch.attention import Style
from foredraft.backends.torch.batch import CELL, POSITION, SEQUENCE, UNBROKEN, Batch, paths_of
from foredraft.backends.torch.by_rows import find_row_kernels
from foredraft.backends.torch.fixed_sizes import FixedSizeModel
from foredraft.backends.torch.kv import Layer
from foredraft.backends.torch.lean import Kernels
from foredraft.backends.torch.loading import load_model
from foredraft.backends.torch.model import TorchModel
from foredraft.backends.torch.offload_cpu import CpuDevice
from foredraft.config import ModelOptions
from foredraft.types import Rows
from model_cases import text_tokens

Make = Callable[..., Path]
TEXT = text_tokens(200)
WIDE = {"hidden_size": 256, "intermediate_size": 512}
"""Large enough that products of one row and of many are added up in other orders."""


def attend(layer: Layer, batch: Batch, q: Any, kv: Any, *, style: Style) -> Any:
    """Every row by itself, from what `Batch.numbers` says of it."""
    paths = batch.scratch["paths"] if "paths" in batch.scratch else paths_of(batch)
    rows = batch.numbers.T.tolist()
    for row, numbers in enumerate(rows):
        if numbers[CELL] >= 0:
            layer.both[:, numbers[SEQUENCE], :, numbers[CELL]] = kv[row]
    out = torch.zeros_like(q)
    for row, numbers in enumerate(rows):
        seen, straight = numbers[POSITION] + 1, numbers[UNBROKEN]
        if seen:
            cells = [*range(min(seen, straight))]
            cells += [straight + int(paths[row, step]) for step in range(seen - straight)]
            keys, values = layer.both[:, numbers[SEQUENCE], :, cells]
            query = q[row].view(len(keys), -1, q.shape[-1])
            weights = torch.softmax(query @ keys.transpose(1, 2) * style.scale, -1)
            out[row] = (weights @ values).flatten(0, 1)
    return out


class Device(CpuDevice):
    """As a GPU for which there are kernels."""

    def by_rows(self, dtype: Any, **shape: int) -> Any:
        return Kernels(attend)

    def recorder(self) -> Any:
        return Again()


class Again:
    """A `Recorder` that computes again."""

    def record(self, compute: Callable[[], Any]) -> Callable[[], Any]:
        return compute

    def close(self) -> None:
        pass


def load(path: Path, device: CpuDevice, **options: Any) -> TorchModel:
    chosen = {"threads": 1, "probe": False, "context_length": 256, "sequences": 3, **options}
    return load_model(path, ModelOptions(**chosen), device)


def logits(model: TorchModel) -> Any:
    """Of prompts, rows of two sequences beside a third's prompt, a tree, and the path that is kept of it."""
    found = [model.forward([Rows(0, 0, TEXT[:100], 2), Rows(1, 0, TEXT[50:90], 1)]).copy()]
    beside = [Rows(1, 40, TEXT[90:97], 7), Rows(0, 100, TEXT[100:102], 2), Rows(2, 0, TEXT[:70], 1)]
    found.append(model.forward(beside).copy())
    found.append(model.forward([Rows(0, 102, (*TEXT[102:104], 7, TEXT[104]), 4, (-1, 0, 0, 1))]).copy())
    model.keep_path(0, 102, [0, 1, 3])
    found.append(model.forward([Rows(0, 105, TEXT[105:108], 3)]).copy())
    return np.concatenate(found)


@pytest.mark.parametrize("architecture", torch_factory.LEAN)
@pytest.mark.parametrize("gpu_layers", [-1, 1])
def test_a_model_computes_what_it_does_without(folder: Make, architecture: str, gpu_layers: int) -> None:
    path = folder(architecture, num_hidden_layers=3)
    plain, sized = load(path, CpuDevice(10**9)), load(path, Device(10**9), gpu_layers=gpu_layers)
    assert isinstance(sized, FixedSizeModel)
    assert ("64 rows, recorded" in sized.info.settings["batches"]) is (gpu_layers == -1)
    np.testing.assert_allclose(logits(sized), logits(plain), atol=2e-4, rtol=2e-4)
    plain.close()
    sized.close()


def test_the_sizes_are_those_in_which_this_machine_adds_up_alike(folder: Make) -> None:
    model = load(folder("llama", **WIDE), Device(10**9), dtype="bf16")
    model.forward([Rows(0, 0, TEXT[:100], 0)])
    single = np.concatenate([model.forward([Rows(0, 100 + i, TEXT[100 + i : 101 + i], 1)]) for i in range(9)])
    for count in range(2, 10):
        model.truncate(0, 100)
        assert np.array_equal(model.forward([Rows(0, 100, TEXT[100 : 100 + count], count)]), single[:count])
    model.close()


def test_what_is_streamed_has_one_size(folder: Make) -> None:
    model = load(folder("llama", num_hidden_layers=3), Device(10**9), gpu_layers=1, dtype="bf16")
    assert model.info.settings["batches"] == "64 rows"
    model.close()


def test_what_cannot_be_recorded_has_the_size_that_is_alike(
    folder: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_recorder: Again, _compute: Callable[[], Any]) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(Again, "record", fail)
    with caplog.at_level(logging.WARNING):
        model = load(folder("llama"), Device(10**9), dtype="bf16")
    assert model.info.settings["batches"] == "64 rows"
    assert "Forwards cannot be recorded here (CUDA out of memory.)" in caplog.text
    model.close()


def test_where_there_is_no_triton_it_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "foredraft.backends.torch.row_attention", None)
    shape = {"heads": 4, "groups": 2, "size": 16, "context_length": 64}
    with caplog.at_level(logging.WARNING):
        assert find_row_kernels(torch.device("cpu"), torch.float32, **shape) is None
    assert "Triton cannot compile kernels here" in caplog.text
