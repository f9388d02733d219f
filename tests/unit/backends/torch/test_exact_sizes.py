"""Kernels that add up some numbers of rows in another order: found, and kept away from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from foredraft.backends.torch import linear
from foredraft.backends.torch.exact_sizes import alike, in_exact_sizes, telling_weight

INPUTS, OUTPUTS = 40, 24


def multiplier(reversed_for: Callable[[int], bool], seen: list[int]) -> tuple[Callable[[Any], Any], Any]:
    """A product in fp32 that is added up from the end for some numbers of rows, and a row that shows it."""
    weight, row = telling_weight(OUTPUTS, INPUTS, torch.float32)

    def multiply(rows: Any) -> Any:
        seen.append(len(rows))
        total = torch.zeros(len(rows), OUTPUTS)
        for column in reversed(range(INPUTS)) if reversed_for(len(rows)) else range(INPUTS):
            total += rows[:, column, None] * weight[:, column]
        return total

    return multiply, row


def test_numbers_of_rows_are_told_apart_by_how_they_are_added_up() -> None:
    multiply, row = multiplier(lambda count: count == 1 or count > 8, [])
    assert alike(multiply, row, [1, 2, 3, 8, 9]) == [0, 1, 1, 1, 0]


def test_a_product_whose_own_rows_differ_is_like_no_other() -> None:
    def multiply(rows: Any) -> Any:
        return rows + torch.arange(len(rows))[:, None]

    assert alike(multiply, torch.ones(1, 3), [1, 2, 3]) == [0, None, None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("inputs", [1, 3, 576])
def test_products_of_the_telling_weight_nearly_cancel_out(dtype: Any, inputs: int) -> None:
    weight, row = telling_weight(50, inputs, dtype)
    parts = weight.double() * row.double()
    assert weight.dtype == row.dtype == dtype
    assert inputs == 1 or (parts.sum(1).abs() <= 1e-2 * parts.abs().sum(1) + 1e-6).all()


@pytest.mark.parametrize("count", [0, 1, 2, 3, 8, 9, 16, 17, 40])
def test_rows_are_filled_up_and_divided(count: int) -> None:
    seen: list[int] = []
    multiply, row = multiplier(lambda rows: rows < 2 or rows > 8, seen)
    apply = in_exact_sizes(multiply, INPUTS, tuple(max(size, 2) for size in range(9)))
    expected = multiply(row.expand(4, -1))[:1].expand(count, -1)
    seen.clear()
    assert torch.equal(apply(row.expand(count, -1)), expected)
    assert all(2 <= size <= 8 for size in seen)


@pytest.mark.parametrize("shape", [(), (3,), (2, 5), (2, 0)], ids=str)
def test_shapes_are_kept(shape: tuple[int, ...]) -> None:
    multiply, _ = multiplier(lambda _: False, [])
    apply = in_exact_sizes(multiply, INPUTS, tuple(max(size, 2) for size in range(9)))
    assert apply(torch.ones(*shape, INPUTS)).shape == (*shape, OUTPUTS)


@pytest.mark.parametrize(
    ("other", "least", "most"),
    [
        (lambda _: False, None, None),
        (lambda count: count == 1, 2, 512),
        (lambda count: count < 8, 8, 512),
        (lambda count: count > 32, 1, 32),
        (lambda count: count in {1, 512}, 2, 129),
        (lambda count: count < 64, 1, 33),
    ],
    ids=["all alike", "a single row", "few rows", "many rows", "both", "never only large products"],
)
def test_the_sizes_of_a_product_are_the_most_that_are_alike(
    monkeypatch: pytest.MonkeyPatch, other: Callable[[int], bool], least: int | None, most: int | None
) -> None:
    multiply, _ = multiplier(other, [])
    monkeypatch.setattr(linear, "_over_copy", lambda _weight, _bias: multiply)
    measure = linear.exact_sizes.__wrapped__  # type: ignore[attr-defined]
    sizes = measure(OUTPUTS, INPUTS, torch.float32)
    assert (sizes and (sizes[1], len(sizes) - 1)) == (most and (least, most))
