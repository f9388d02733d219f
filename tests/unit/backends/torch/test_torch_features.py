"""Hidden states for heads: the right ones, in the order of the request, and logits that do not change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import torch_factory
from foredraft.backends.torch.batch import Batch
from foredraft.backends.torch.features import Taps
from foredraft.backends.torch.fixed_sizes import FixedSizeForward, FixedSizeModel
from foredraft.backends.torch.kv import KVCache
from foredraft.backends.torch.loading import load_model
from foredraft.backends.torch.offload_cpu import CpuDevice
from foredraft.config import ModelOptions
from foredraft.errors import BackendError, UnsupportedModelError
from foredraft.protocols import Model
from foredraft.testing import FakeModel
from foredraft.types import Features, Rows
from model_cases import text_tokens
from torch_cases import load, reference

Make = Callable[..., Path]
WATCH = ("layer:1", "next", "layer:0")
SIZE = 64
TEXT = text_tokens(24)
OTHER = text_tokens(9, seed=1)

OUTPUTS = {"mamba", "mamba2", "falcon_mamba", "rwkv"}
"""Those of which transformers' `hidden_states` are the layers' outputs, not their inputs."""


def expected(path: Path, tokens: list[int]) -> Any:
    """transformers' own hidden states, side by side as in `WATCH`."""
    with torch.inference_mode():
        hidden = reference(path)(torch.tensor([tokens]), output_hidden_states=True).hidden_states
    return torch.cat([hidden[1][0], hidden[-1][0], hidden[0][0]], -1).numpy()


def close(found: Features, wanted: Any) -> bool:
    return found.shape == wanted.shape and np.allclose(
        found, wanted, rtol=1e-3, atol=1e-3 * np.abs(wanted).max()
    )


@pytest.mark.parametrize("architecture", sorted(torch_factory.ARCHITECTURES.keys() - OUTPUTS))
def test_they_are_transformers_own(folder: Make, architecture: str) -> None:
    path = folder(architecture)
    model = load(path, "fp32", watch=WATCH)
    model.forward([Rows(0, 0, TEXT, 1)])
    assert close(model.features(), expected(path, TEXT))


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "gemma3", "gpt_oss", "lfm2", "qwen3_5", "bloom"])
def test_logits_are_the_same_bits_with_and_without(folder: Make, architecture: str) -> None:
    on, off = (load(folder(architecture), "fp32", watch=watch, sequences=2) for watch in (WATCH, ()))
    assert on.capabilities.features == WATCH
    assert on.capabilities.feature_size == folder_size(on)
    assert (off.capabilities.features, off.capabilities.feature_size) == ((), 0)
    steps = [
        [Rows(0, 0, TEXT[:17], 17)],
        [Rows(0, 17, TEXT[17:18], 1), Rows(1, 0, OTHER, 1)],
        [Rows(1, 9, TEXT[:3], 3), Rows(0, 18, TEXT[18:], 6)],
    ]
    for step in steps:
        assert np.array_equal(on.forward(step), off.forward(step))
        assert on.features().shape == (sum(len(rows.tokens) for rows in step), len(WATCH) * SIZE)


def folder_size(model: Model) -> int:
    model.forward([Rows(0, 0, TEXT[:1], 0)])
    width = model.features().shape[1]
    model.release(0)
    return int(width) // len(WATCH)


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "qwen3_5", "bloom", "qwen2_moe"])
def test_they_come_in_the_order_of_the_request(folder: Make, architecture: str) -> None:
    model = load(folder(architecture), "fp32", watch=WATCH, sequences=3)
    texts = [TEXT[:5], OTHER, TEXT[7:11]]
    alone = []
    for text in texts:
        model.forward([Rows(0, 0, text, 1)])
        alone.append(model.features().copy())
        model.release(0)
    model.forward([Rows(2, 0, texts[0], 0), Rows(0, 0, texts[1], 3), Rows(1, 0, texts[2], 1)])
    assert close(model.features(), np.concatenate(alone))


def test_a_tree_has_those_of_its_paths(folder: Make) -> None:
    model = load(folder("llama"), "fp32", watch=WATCH)
    model.forward([Rows(0, 0, TEXT, 1)])
    model.forward([Rows(0, len(TEXT), (40, 41, 42, 43), 4, (-1, 0, 0, 1))])
    tree = model.features().copy()
    model.keep_path(0, len(TEXT), [])
    model.forward([Rows(0, len(TEXT), (40, 41, 43), 3)])
    assert np.array_equal(model.features(), tree[[0, 1, 3]])


def test_a_forward_of_nothing_has_none(folder: Make) -> None:
    model = load(folder("llama"), watch=WATCH)
    with pytest.raises(BackendError, match="no forward"):
        model.features()
    model.forward([])
    assert model.features().shape == (0, len(WATCH) * SIZE)


def test_a_model_without_them_says_so(folder: Make) -> None:
    model = load(folder("llama"))
    model.forward([Rows(0, 0, TEXT, 1)])
    with pytest.raises(BackendError, match="without hidden states"):
        model.features()


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
@pytest.mark.parametrize(
    ("watch", "words"),
    [
        (("layer:6",), "none is layer:6"),
        (("layer:-1",), "no hidden state 'layer:-1'"),
        (("last",), "no hidden state 'last'"),
        (("layer:1", "layer:1"), "asked for twice"),
    ],
)
def test_unknown_ones_are_refused(folder: Make, architecture: str, watch: Any, words: str) -> None:
    with pytest.raises(UnsupportedModelError, match=words):
        load(folder(architecture, num_hidden_layers=6), watch=watch)


class Streams(torch.nn.Module):  # type: ignore[misc]
    """A model whose layers get several streams at once (Gemma 3n)."""

    def __init__(self) -> None:
        super().__init__()
        self.config = self
        self.hidden_size = SIZE
        self.layers = torch.nn.ModuleList([torch.nn.Identity() for _ in range(2)])

    def get_text_config(self) -> Streams:
        return self

    def get_decoder(self) -> Streams:
        return self

    def forward(self, rows: Any) -> Any:
        return self.layers[1](rows.expand(4, *rows.shape))


def test_a_hidden_state_of_another_shape_is_refused() -> None:
    source = Streams()
    taps = Taps(source, ("layer:1",))
    taps.begin()
    with pytest.raises(UnsupportedModelError, match="not one row of 64 numbers for each token"):
        source(torch.zeros(1, 3, SIZE))


def test_a_hidden_state_that_does_not_come_by_is_refused() -> None:
    taps = Taps(Streams(), ("layer:0",))
    taps.begin()
    with pytest.raises(UnsupportedModelError, match="no head can read it"):
        taps.taken()


def test_only_a_watching_model_has_other_keys(folder: Make) -> None:
    on, off = load(folder("llama"), watch=("layer:1",)), load(folder("llama"))
    assert on.info.settings["watch"] == "layer:1"
    assert "watch" not in off.info.settings
    assert on.capabilities.snapshot_key != off.capabilities.snapshot_key


@pytest.mark.parametrize("resident", [7, 3, 1])
def test_streamed_layers_are_watched_too(folder: Make, resident: int) -> None:
    path = folder("llama", num_hidden_layers=7)
    options: dict[str, Any] = {"threads": 1, "probe": False, "context_length": 256, "sequences": 2}
    watch = ("layer:0", "layer:3", "next")
    models = [
        load_model(path, ModelOptions(gpu_layers=resident, watch=chosen, **options), CpuDevice(10**9))
        for chosen in (watch, ())
    ]
    batch = [Rows(1, 0, OTHER, 2), Rows(0, 0, TEXT, 3)]
    found, plain = (model.forward(batch) for model in models)
    assert np.array_equal(found, plain)
    for text, rows in ((OTHER, models[0].features()[:9]), (TEXT, models[0].features()[9:])):
        with torch.inference_mode():
            hidden = reference(path)(torch.tensor([text]), output_hidden_states=True).hidden_states
        assert close(rows, torch.cat([hidden[i][0] for i in (0, 3, -1)], -1).numpy())


# --- batches of fixed sizes ----------------------------------------------------------------------------


class Forward:
    """Keeps two hidden states: the tokens, and their positions."""

    def __call__(self, batch: Batch) -> Any:
        batch.features[:] = [part[:, None].float() for part in (batch.tokens, batch.positions)]
        return batch.tokens[batch.wanted, None].float() * torch.ones(300)

    def close(self) -> None:
        """Nothing to free."""


class Recorder:
    """As a CUDA graph: computes into the tensors of the recording."""

    def record(self, compute: Callable[[], Any]) -> Callable[[], Any]:
        made = compute()

        def replay() -> Any:
            made.copy_(compute())
            return made

        return replay

    def close(self) -> None:
        """Nothing to free."""


@pytest.mark.parametrize("recorder", [None, Recorder()])
def test_a_batch_of_a_fixed_size_has_only_its_own_rows(recorder: Any) -> None:
    with torch.inference_mode():
        forward = FixedSizeForward(
            Forward(), recorder, device=torch.device("cpu"), vocabulary=None, sizes=(1, 4)
        )
    fake = FakeModel()
    model = FixedSizeModel(
        forward,
        KVCache(4, 64, dtype=torch.float32, device=torch.device("cpu")),
        fake.tokenizer,  # type: ignore[arg-type]
        fake.info,
        device=torch.device("cpu"),
        max_batch=64,
        watch=("layer:0", "layer:1"),
    )
    model.forward([Rows(3, 0, (9, 8, 7), 1), Rows(0, 0, (5, 6, 4), 1), Rows(2, 0, range(20, 26), 1)])
    tokens = [9, 8, 7, 5, 6, 4, *range(20, 26)]
    positions = [0, 1, 2, 0, 1, 2, *range(6)]
    assert model.features().tolist() == [list(pair) for pair in zip(tokens, positions, strict=True)]
    model.forward([Rows(0, 3, (1,), 1)])
    assert model.features().tolist() == [[1, 3]]
