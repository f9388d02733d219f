"""Layers that write their recurrence out: RecurrentGemma's, MiniMax's and xLSTM's, over our kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from foredraft import Engine
from foredraft.backends.torch.batch import make_batch
from foredraft.backends.torch.kv import KVCache
from foredraft.backends.torch.linear import plain_linear
from foredraft.backends.torch.mixers import soft_cap
from foredraft.backends.torch.recurrent import Layers
from foredraft.backends.torch.scans import Scans
from foredraft.backends.torch.states import States
from foredraft.errors import UnsupportedModelError
from foredraft.types import Rows
from model_cases import text_tokens
from torch_cases import greedy, load, reference

Make = Callable[..., Path]
CPU = torch.device("cpu")
ROWS, HEADS, SIZE = 40, 3, 10

KERNELS = {
    "recurrent_gemma": "gated_unit",
    "minimax": "lightning",
    "xlstm": "matrix_memory",
}


def numbers(*shape: int, seed: int = 0) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def played(kernel: Callable[[Scans, slice], Any], parts: Sequence[int]) -> Any:
    """What a kernel makes of as many rows as there are, so many in each forward."""
    states = States(KVCache(1, ROWS, dtype=torch.float32, device=CPU))
    states.kept = 5
    out, start = [], 0
    for count in parts:
        states.begin(make_batch([Rows(0, start, [0] * count, 0)], CPU))
        out.append(kernel(Scans(states), slice(start, start + count)))
        states.commit()
        start += count
    assert start == ROWS
    return torch.cat(out)


def unit(scans: Scans, rows: slice) -> Any:
    added = numbers(ROWS, SIZE)
    return scans.gated_unit(added[rows], numbers(ROWS, SIZE, seed=1).sigmoid()[rows])


def lightning(scans: Scans, rows: slice) -> Any:
    q, k, v = (numbers(ROWS, HEADS, SIZE, seed=seed)[rows] for seed in range(3))
    return scans.lightning(q, k, v, torch.tensor([0.1, 0.5, 2.0])[:, None, None])


def memory(scans: Scans, rows: slice) -> Any:
    q, k, v = (numbers(ROWS, HEADS, SIZE, seed=seed)[rows] for seed in range(3))
    opening, keeping = (numbers(ROWS, HEADS, seed=seed)[rows] * 6 for seed in (3, 4))
    return scans.matrix_memory(q, k, v, opening, keeping, 1e-6)


@pytest.mark.parametrize("kernel", [unit, lightning, memory])
def test_rows_have_the_same_bits_in_any_company(kernel: Callable[[Scans, slice], Any]) -> None:
    single = played(kernel, [1] * ROWS)
    for parts in ([ROWS], [3, 7, 1, 29], [16, 24], [1, 38, 1]):
        assert torch.equal(played(kernel, parts), single), parts


def test_lightning_attention_is_the_sum_over_all_rows_before() -> None:
    q, k, v = (numbers(ROWS, HEADS, SIZE, seed=seed).double() for seed in range(3))
    slope = torch.tensor([0.1, 0.5, 2.0]).double()
    distance = torch.arange(ROWS)[:, None] - torch.arange(ROWS)
    decay = torch.exp(-slope[:, None, None] * distance).masked_fill(distance < 0, 0.0)
    expected = torch.einsum("hij,ihd,jhd,jhe->ihe", decay, q, k, v)
    torch.testing.assert_close(played(lightning, [ROWS]).double(), expected, atol=1e-4, rtol=1e-4)


def test_a_matrix_memory_is_a_weighted_sum_over_all_rows_before() -> None:
    """The paper's equations before anything is divided, in numbers with room for that."""
    q, k, v = (numbers(ROWS, HEADS, SIZE, seed=seed).double() for seed in range(3))
    opening, keeping = (numbers(ROWS, HEADS, seed=seed).double() * 6 for seed in (3, 4))
    forgotten = torch.nn.functional.logsigmoid(keeping).cumsum(0)
    weight = torch.exp(forgotten[:, None] - forgotten + opening)  # row, earlier row, head
    weight = weight * torch.ones(ROWS, ROWS).tril()[:, :, None]
    scores = torch.einsum("ihd,jhd->ijh", q, k) * SIZE**-0.5 * weight
    below = scores.sum(1).abs().clamp(min=1.0)
    expected = torch.einsum("ijh,jhe->ihe", scores, v) / below[..., None]
    torch.testing.assert_close(played(memory, [ROWS]).double(), expected, atol=1e-3, rtol=1e-3)


def test_a_capped_number_is_the_same_wherever_it_stands() -> None:
    values = numbers(1, 7, 5) * 20
    single = torch.cat([soft_cap(values[:, i : i + 1], 15.0) for i in range(7)], dim=1)
    assert torch.equal(soft_cap(values, 15.0), single)
    torch.testing.assert_close(single, 15 * torch.tanh(values / 15))
    assert soft_cap(values, None) is values


@pytest.mark.parametrize("architecture", KERNELS)
def test_what_our_kernels_do_not_compute_is_refused(
    folder: Make, architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer transformers may compute something else. Its own caches do not hold these states."""
    name = KERNELS[architecture]
    real = getattr(Scans, name)
    monkeypatch.setattr(Scans, name, lambda *values: real(*values).flip(1))
    with pytest.raises(
        UnsupportedModelError, match=r"outside of transformers' caches.*logits .* apart"
    ) as caught:
        load(folder(architecture))
    assert "GGUF" in (caught.value.hint or "")


@pytest.mark.parametrize("architecture", KERNELS)
def test_what_was_taken_over_can_be_given_back(folder: Make, architecture: str) -> None:
    source, tokens = reference(folder(architecture)), torch.tensor([text_tokens(20)])
    with torch.inference_mode():
        before = source(input_ids=tokens, use_cache=False).logits
        layers = Layers(source, plain_linear)
        assert layers.take_over(States(KVCache(1, ROWS, dtype=torch.float32, device=CPU)))
        assert layers.needed
        layers.give_back()
        assert torch.equal(source(input_ids=tokens, use_cache=False).logits, before)


def test_gates_are_held_once(folder: Make) -> None:
    """What a product has a copy of, its module holds no more."""
    model: Any = load(folder("recurrent_gemma"))
    source = model._model._forward._forward._source
    units = [module for module in source.modules() if hasattr(module, "recurrent_param")]
    assert units
    assert all(unit.input_gate_weight is unit.recurrent_gate_weight is None for unit in units)


def test_a_long_prompt_goes_through_xlstm_at_once(folder: Make) -> None:
    """transformers would divide it, and each layer would be called several times in a forward."""
    prompt = text_tokens(50)
    expected = greedy(reference(folder("xlstm")), prompt, 8)
    with Engine(load(folder("xlstm", max_inference_chunksize=8)), drafters=()) as engine:
        assert list(engine.generate(prompt, max_tokens=8).tokens) == expected
