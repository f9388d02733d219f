"""Numbers of rows whose products have the same summation order, and how to use only these.

A library chooses among its kernels by the number of rows, and two kernels may sum in different orders: oneDNN
with AVX-512 and more than 1,024 inputs for a single row, with AMX for more than 32 rows, FBGEMM for one and
two rows. The affected numbers differ between processors, so they are measured for each shape. A product of
few rows is then padded, and one of many is divided.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cache, wraps
from typing import Any, TypeAlias, TypeVar

import torch

Multiply: TypeAlias = Callable[[Any], Any]
"""From rows of shape (count, inputs) to rows of shape (count, outputs)."""

Found = TypeVar("Found")

_CANCELLING = 4
"""Columns that cancel the sum of the others; each leaves 1/256 of it, in bf16."""


def measured_with_threads(measure: Callable[..., Found]) -> Callable[..., Found]:
    """Cache `measure` by its arguments and torch's number of threads at the call: a library that divides a
    product between threads may sum in another order.
    """

    @cache
    def kept(_threads: int, *arguments: Hashable) -> Found:
        return measure(*arguments)

    @wraps(measure)
    def ask(*arguments: Hashable) -> Found:
        return kept(torch.get_num_threads(), *arguments)

    return ask


def telling_weight(outputs: int, inputs: int, dtype: Any) -> tuple[Any, Any]:
    """A weight of shape (outputs, inputs) and a row of shape (1, inputs) whose products nearly cancel out.

    The rest is rounding, which another summation order changes in almost every number; of ordinary products
    it changes one in hundreds.
    """
    generator = torch.Generator().manual_seed(1)
    weight = torch.rand(outputs, inputs, generator=generator).sub_(0.5).to(dtype)
    row = torch.randn(1, inputs, generator=generator).to(dtype)
    first = max(1, inputs - _CANCELLING)
    row[0, first:] = 1.0
    rest = weight[:, :first].double() @ row[0, :first].double()
    for column in range(first, inputs):
        weight[:, column] = (-rest).to(dtype)
        rest += weight[:, column].double()
    return weight, row


def alike(multiply: Multiply, row: Any, counts: Sequence[int]) -> list[int | None]:
    """For each of `counts` a number that is equal if all rows of both products have the same bits; None if a
    product's own rows differ.
    """
    kinds: dict[bytes, int] = {}
    found: list[int | None] = []
    for count in counts:
        rows = multiply(row.expand(count, -1).contiguous())
        same = torch.equal(rows, rows[:1].expand(count, -1))
        found.append(kinds.setdefault(rows[0].float().numpy().tobytes(), len(kinds)) if same else None)
    return found


def in_exact_sizes(multiply: Multiply, inputs: int, sizes: Sequence[int]) -> Multiply:
    """`multiply` for any number of rows, of shape (…, inputs), with `sizes[count]` rows in place of `count`,
    and at most the largest size at once.
    """
    most = len(sizes) - 1

    def block(rows: Any) -> Any:
        count = len(rows)
        size = sizes[count]
        if size == count:
            return multiply(rows)
        # The content of padding rows does not matter, and repeating a single row is faster than padding.
        alone = count == 1
        padded = torch.cat([rows] * size) if alone else torch.constant_pad_nd(rows, (0, 0, 0, size - count))
        return multiply(padded)[:count]

    def apply(rows: Any) -> Any:
        if rows.ndim == 2 and len(rows) <= most:
            return block(rows)
        flat = rows.reshape(-1, inputs)
        found = block(flat) if len(flat) <= most else torch.cat([block(part) for part in flat.split(most)])
        return found.view(*rows.shape[:-1], found.shape[-1])

    return apply
