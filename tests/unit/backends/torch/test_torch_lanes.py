"""Functions of single numbers give the same bits however many rows there are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional
from transformers.activations import ACT2FN

from foredraft.backends.torch.lanes import align_activations, by_lanes, evenly

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "sigmoid": lambda rows: rows.sigmoid(),
    "exp": torch.exp,
    "softplus": functional.softplus,
    "silu": functional.silu,
    "gelu": lambda rows: functional.gelu(rows, approximate="tanh"),
}


@pytest.mark.parametrize("size", [1, 12, 16, 48, 200])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_bits_do_not_depend_on_the_number_of_rows(name: str, size: int) -> None:
    rows = torch.randn(23, size, generator=torch.Generator().manual_seed(1))
    layer = evenly(FUNCTIONS[name])
    whole = layer(rows)
    torch.testing.assert_close(whole, FUNCTIONS[name](rows))
    for count in (1, 2, 3, 7):
        for first in (0, 5):
            assert torch.equal(layer(rows[first : first + count]), whole[first : first + count])


def test_a_layer_that_leaves_nothing_over_is_called_as_it_is() -> None:
    watched = []

    def layer(rows: Any) -> Any:
        watched.append(torch.overrides._get_current_function_mode_stack())
        return rows.sigmoid()

    even = evenly(layer)
    even(torch.zeros(3, 64))
    even(torch.zeros(3, 64))
    assert watched[0]
    assert not watched[1]
    odd = evenly(layer)
    odd(torch.zeros(3, 17))
    odd(torch.zeros(3, 17))
    assert watched[2]
    assert watched[3]


@pytest.mark.parametrize("name", ["gelu", "gelu_pytorch_tanh", "silu"])
def test_an_activation_of_half_a_product_does_not_depend_on_the_rows(name: str) -> None:
    class Gated(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.act = ACT2FN[name]

        def forward(self, rows: Any) -> Any:
            gate, up = rows.chunk(2, dim=-1)
            return self.act(gate) * up

    model = Gated()
    rows = torch.randn(16, 192, generator=torch.Generator().manual_seed(0))
    align_activations(model)
    single = torch.cat([model(row[None]) for row in rows])
    for count in (2, 3, 16):
        assert torch.equal(model(rows[:count]), single[:count]), count


@pytest.fixture
def five_threads() -> Iterator[None]:
    """A number that divides hardly anything."""
    before = torch.get_num_threads()
    torch.set_num_threads(5)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("five_threads")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", [100, 8960])
@pytest.mark.parametrize("name", ["gelu", "gelu_pytorch_tanh", "silu"])
def test_nor_on_how_threads_divide_them(name: str, size: int, dtype: Any) -> None:
    model = torch.nn.Sequential(ACT2FN[name])
    align_activations(model)
    rows = torch.randn(401, size, generator=torch.Generator().manual_seed(0)).to(dtype)
    single = torch.cat([model(row[None]) for row in rows])
    for count in (8, 17, 401):
        assert torch.equal(model(rows[:count]), single[:count]), count


@pytest.mark.usefixtures("five_threads")
def test_a_layer_of_many_rows_is_not_divided_anywhere() -> None:
    rows = torch.randn(401, 416, generator=torch.Generator().manual_seed(0))
    layer = evenly(functional.silu)
    single = torch.cat([layer(input=row[None]) for row in rows])
    assert torch.equal(layer(input=rows), single)


@pytest.mark.parametrize("module", [torch.nn.Softmax(-1), torch.nn.GLU(), torch.nn.LogSoftmax(-1)], ids=str)
def test_functions_of_whole_rows_are_left_as_they_are(module: Any) -> None:
    rows = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    expected = module(rows)
    align_activations(torch.nn.Sequential(module))
    assert torch.equal(module(rows), expected)


@pytest.mark.parametrize("shape", [(0, 5), (1, 1), (70, 1000)], ids=str)
def test_shapes_are_kept(shape: tuple[int, int]) -> None:
    rows = torch.ones(shape)
    torch.testing.assert_close(by_lanes(torch.exp, rows), rows.exp())
