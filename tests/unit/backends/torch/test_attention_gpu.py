"""Attention on a real CUDA device: a row's bits do not depend on its company, and nothing is planned anew."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from foredraft.backends.torch.attention import Style, attend_masked
from foredraft.backends.torch.batch import PATH, Batch, ancestors, make_batch
from foredraft.backends.torch.kv import KVCache
from foredraft.backends.torch.lean import Kernels, turn_heads
from foredraft.backends.torch.offload_cuda import CudaDevice
from foredraft.backends.torch.sdpa_kernels import attention_kernels
from foredraft.types import Rows

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]

LENGTH = 700
DTYPES = [torch.bfloat16, torch.float16, torch.float32]
SHAPES = [(9, 3, 64), (8, 1, 128), (4, 4, 80), (32, 1, 64)]
"""Query heads, heads of keys, numbers of each."""
COUNTS = (2, 3, 4, 8, 16, 17, 32, 63)


@pytest.fixture(params=["by rows", "masked"])
def attention(request: pytest.FixtureRequest) -> Any:
    return attend_masked if request.param == "masked" else by_rows()


def by_rows() -> Any:
    return kernels().attention


def kernels() -> Kernels:
    heads, groups, size = SHAPES[0]
    found = CudaDevice().by_rows(torch.bfloat16, heads=heads, groups=groups, size=size, context_length=LENGTH)
    assert found is not None
    return found


class Text:
    """Random queries, keys and values of a text, in a cache on the device."""

    def __init__(self, attention: Any, dtype: Any, shape: tuple[int, int, int] = SHAPES[0]) -> None:
        generator = torch.Generator().manual_seed(0)
        heads, self.groups, self.size = shape
        self.device, self.attention = torch.device("cuda"), attention
        q, *kv = (
            torch.randn(LENGTH, many, self.size, generator=generator)
            for many in (heads, self.groups, self.groups)
        )
        self.q = q.to(self.device, dtype)
        self.kv = torch.stack(kv, 1).to(self.device, dtype)
        self.cache = KVCache(2, LENGTH, dtype=dtype, device=self.device)

    def see(self, *parts: Rows) -> Any:
        """What the given rows, whose tokens are places in the text, see of what stands before them."""
        batch = make_batch(parts, self.device)
        layer = self.cache.layer(0, self.groups, self.size, self.size)
        with torch.inference_mode(), attention_kernels(self.device):
            style = Style(self.size**-0.5)
            return self.attention(layer, batch, self.q[batch.tokens], self.kv[batch.tokens], style=style)

    def chain(self, rows: Sequence[int], seq: int = 0) -> Any:
        return self.see(Rows(seq, rows[0], rows, 0))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_bits_do_not_depend_on_the_company(attention: Any, dtype: Any) -> None:
    text = Text(attention, dtype)
    single = torch.cat([text.chain([row]) for row in range(LENGTH)])
    for start in (0, 1, 60, 190, 512, 600):
        for count in COUNTS:
            found = text.chain(range(start, start + count))
            assert torch.equal(found, single[start : start + count]), (start, count)


def test_no_kernel_has_to_be_planned_for_a_number_of_cells() -> None:
    text = Text(attend_masked, torch.bfloat16)
    text.chain(range(64))
    kinds = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds, acc_events=True) as profiler:
        text.chain([64])
        text.chain(range(65, 70))
        torch.cuda.synchronize()
    kernels = [event.key.lower() for event in profiler.key_averages()]
    assert kernels
    assert not [name for name in kernels if "cudnn" in name]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_by_rows_is_the_same_function(dtype: Any, shape: tuple[int, int, int]) -> None:
    texts = [Text(found, dtype, shape) for found in (attend_masked, by_rows())]
    parts = [
        [Rows(0, 0, range(600), 0), Rows(1, 0, range(40), 0)],
        [Rows(0, 600, (600,), 0)],
        [Rows(0, 601, range(601, 605), 0, (-1, 0, 0, 1)), Rows(1, 40, range(40, 43), 0)],
    ]
    for part in parts:
        expected, found = (text.see(*part).float() for text in texts)
        assert float((expected - found).abs().max()) < (1e-5 if dtype == torch.float32 else 2e-2)
    layers = [text.cache.layer(0, *shape[1:], shape[2]) for text in texts]
    assert torch.equal(layers[0].keys[:, :, :604], layers[1].keys[:, :, :604])
    assert torch.equal(layers[0].values[:, :, :604], layers[1].values[:, :, :604])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("start", [0, 5, 250, 600])
def test_a_row_of_a_tree_has_the_bits_of_a_chain(dtype: Any, start: int) -> None:
    text = Text(by_rows(), dtype)
    if start:
        text.chain(range(start), 1)
    parents = (-1, 0, 0, 1, 3, 2, -1, 4, 4, 8, 5)
    rows = range(start, start + len(parents))
    tree = text.see(Rows(0, 0, (3,), 0), Rows(1, start, rows, 0, parents))[1:]
    for row in range(len(parents)):
        path = ancestors(parents, row)
        chain = text.see(Rows(1, start, tuple(rows[step] for step in path), 0))
        assert torch.equal(chain, tree[path]), row


def test_the_bits_do_not_depend_on_how_a_prompt_is_divided() -> None:
    text = Text(by_rows(), torch.bfloat16)
    whole = text.chain(range(LENGTH))
    for step in (1, 7, 64, 333):
        found = torch.cat([text.chain(range(i, min(LENGTH, i + step)), 1) for i in range(0, LENGTH, step)])
        assert torch.equal(found, whole), step


@pytest.mark.parametrize("dtype", DTYPES)
def test_programs_of_one_row_and_of_several_give_the_same_bits(dtype: Any) -> None:
    text = Text(by_rows(), dtype)
    rows = range(100, 140)
    text.chain(range(100))
    batch = make_batch([Rows(0, 100, rows, 0)], text.device)
    static = Batch(
        batch.numbers, batch.wanted, (), {"paths": torch.zeros(40, PATH, dtype=torch.long, device="cuda")}
    )
    layer = text.cache.layer(0, text.groups, text.size, text.size)
    q, kv, style = text.q[batch.tokens], text.kv[batch.tokens], Style(text.size**-0.5)
    with torch.inference_mode():
        found = [text.attention(layer, one, q, kv, style=style) for one in (batch, static)]
    assert torch.equal(*found)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [64, 80])
@pytest.mark.parametrize(("normed", "turned"), [(True, True), (True, False), (False, True)])
def test_heads_are_turned_as_torch_does_it(dtype: Any, size: int, normed: bool, turned: bool) -> None:
    turn = kernels().turn
    generator = torch.Generator().manual_seed(3)

    def some(*shape: int) -> Any:
        return torch.randn(*shape, generator=generator).to("cuda", dtype)

    heads, norms, cos, sin = some(30, 15, size), some(12, size), some(30, 1, size), some(30, 1, size)
    arguments = (norms if normed else None, 1e-5, (cos, sin) if turned else None)
    expected, found = heads.clone(), heads.clone()
    turn_heads(expected.narrow(1, 0, 12), *arguments)
    turn(found.narrow(1, 0, 12), *arguments)
    apart = (expected.float() - found.float()).abs().max()
    assert float(apart) <= 8 * torch.finfo(dtype).eps * float(expected.float().abs().max())
    assert torch.equal(found[:, 12:], heads[:, 12:]), "values are left alone"
    for row in [*range(30)] * 20:
        single = heads[row : row + 1].clone()
        turn(single.narrow(1, 0, 12), arguments[0], 1e-5, (cos[row:], sin[row:]) if turned else None)
        assert torch.equal(single, found[row : row + 1])
