"""Attention on a real CUDA device: a row's bits do not depend on its company, and nothing is planned anew."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from foretoken.backends.torch.attention import Style, attend_masked
from foretoken.backends.torch.batch import make_batch
from foretoken.backends.torch.kv import KVCache
from foretoken.backends.torch.sdpa_kernels import attention_kernels
from foretoken.types import Rows

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]

HEADS, GROUPS, SIZE, LENGTH = 9, 3, 64, 700


class Text:
    """Random queries, keys and values of a text, in a cache on the device."""

    def __init__(self, dtype: Any) -> None:
        generator = torch.Generator().manual_seed(0)
        self.device = torch.device("cuda")
        q, *kv = (torch.randn(LENGTH, heads, SIZE, generator=generator) for heads in (HEADS, GROUPS, GROUPS))
        self.q = q.to(self.device, dtype)
        self.kv = tuple(part.to(self.device, dtype) for part in kv)
        self.layer = KVCache(1, LENGTH, dtype=dtype, device=self.device).layer(0, GROUPS, SIZE, SIZE)

    def see(self, rows: Sequence[int]) -> Any:
        """What the given rows of the text see of what stands before them."""
        index = torch.tensor(rows, device=self.device)
        batch = make_batch([Rows(0, rows[0], rows, 0)], self.device)
        kv = tuple(part[index] for part in self.kv)
        with torch.inference_mode(), attention_kernels(self.device):
            return attend_masked(self.layer, batch, self.q[index], kv, style=Style(SIZE**-0.5))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_bits_do_not_depend_on_the_company(dtype: Any) -> None:
    text = Text(dtype)
    single = torch.cat([text.see([row]) for row in range(LENGTH)])
    for start in (0, 1, 60, 190, 512, 600):
        for count in (2, 3, 4, 8, 16, 17, 32, 63):
            found = text.see(range(start, start + count))
            assert torch.equal(found, single[start : start + count]), (start, count)


def test_no_kernel_has_to_be_planned_for_a_number_of_cells() -> None:
    text = Text(torch.bfloat16)
    text.see(range(64))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        text.see([64])
        text.see(range(65, 70))
        torch.cuda.synchronize()
    kernels = [event.key.lower() for event in profiler.key_averages()]
    assert kernels
    assert not [name for name in kernels if "cudnn" in name]
