"""The norm of short formats is transformers' one, and every row is computed alike."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from foredraft.backends.torch.norm import rms_norm

EPS = 1e-5
SHORT = [torch.bfloat16, torch.float16]


def some_rows(count: int, size: int, dtype: Any) -> Any:
    """Rows as they occur, with a few numbers hundreds of times as large as the others."""
    rows = torch.randn(count, size, generator=torch.Generator().manual_seed(size))
    rows[:, :: size // 3] *= 700
    return rows.to(dtype)


def transformers_norm(rows: Any, weight: Any) -> Any:
    norm = LlamaRMSNorm(rows.shape[-1], eps=EPS)
    norm.weight.data = weight
    return norm(rows).detach()


@pytest.mark.parametrize("size", [24, 576, 4096])
@pytest.mark.parametrize("dtype", SHORT)
def test_short_formats_are_at_most_one_rounding_from_transformers(dtype: Any, size: int) -> None:
    rows = some_rows(40, size, dtype)
    weight = (1 + 0.2 * torch.randn(size, generator=torch.Generator().manual_seed(1))).to(dtype)
    found, expected = rms_norm(rows, weight, EPS), transformers_norm(rows, weight)
    assert found.dtype == dtype
    apart = (found.float() - expected.float()).abs()
    assert bool((apart <= 2.1 * torch.finfo(dtype).eps * expected.float().abs()).all())
    assert float((apart > 0).float().mean()) < 0.01


def test_in_fp32_the_bits_are_transformers() -> None:
    rows = some_rows(7, 576, torch.float32)
    weight = torch.rand(576)
    assert torch.equal(rms_norm(rows, weight, EPS), transformers_norm(rows, weight))


@pytest.mark.parametrize("size", [20, 64, 577, 4096])
@pytest.mark.parametrize("dtype", [*SHORT, torch.float32])
def test_a_row_does_not_depend_on_its_company(dtype: Any, size: int) -> None:
    rows, weight = some_rows(129, size, dtype), torch.rand(size).to(dtype)
    together = rms_norm(rows, weight, EPS)
    for count in (1, 2, 3, 8, 17, 64):
        assert torch.equal(rms_norm(rows[:count], weight, EPS), together[:count])


@pytest.mark.parametrize("dtype", SHORT)
def test_heads_are_normed_each_by_itself(dtype: Any) -> None:
    heads = some_rows(10, 64, dtype).view(2, 5, 64)
    weight = torch.rand(5, 64).to(dtype)
    normed = rms_norm(heads, weight, EPS)
    for row in range(2):
        for head in range(5):
            alone = rms_norm(heads[row : row + 1, head], weight[head], EPS)
            assert torch.equal(normed[row, head], alone[0])


@pytest.mark.parametrize("dtype", SHORT)
def test_zeros_stay_zeros(dtype: Any) -> None:
    assert not rms_norm(torch.zeros(2, 64, dtype=dtype), torch.ones(64, dtype=dtype), EPS).any()
