"""Functions of single numbers give the same bits however many rows there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from foretoken.backends.torch.lanes import evenly

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
