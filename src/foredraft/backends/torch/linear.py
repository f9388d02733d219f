"""Matrix products whose rows do not depend on the number of rows.

Identical output with and without speculation requires that (docs/exactness.md), and torch's own `linear` does
not provide it: on a processor a single row takes another path (a matrix-vector product with another summation
order) than four rows and more. oneDNN's kernel over packed weights computes every row alike, from 1 row to
129 and on any number of threads, and a second row is nearly free: V(2) is 1.0 to 1.2, V(8) 2 × V(1), while
torch's own has V(2) = 2, V(8) = 3.5. With bf16 weights it uses the processor's bf16 instructions (AMX,
AVX512_BF16).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeAlias

import torch
from transformers.pytorch_utils import Conv1D

from foredraft.backends.torch.exact_sizes import (
    alike,
    in_exact_sizes,
    measured_with_threads,
    telling_weight,
)
from foredraft.errors import ForedraftError

Linear: TypeAlias = Callable[[Any], Any]
"""From rows of shape (…, inputs) to rows of shape (…, outputs)."""

LAID_OUT_FOR = 16
"""The number of rows for which oneDNN prepares. For one row it prepares for matrix-vector products, which are
not exact.
"""

_COUNTS = (1, 2, 3, 4, 8, 16, 17, 32, 33, 64, 65, 128, 129, 512)
_OUTPUTS = 4096
_MOST_FILLED = 16
"""A product that is only exact for more rows than this is not padded: it would cost what drafts gain."""


def plain_linear(weight: Any, bias: Any = None) -> Linear:
    """The product of torch. `weight` has shape (outputs, inputs)."""

    def apply(rows: Any) -> Any:
        return torch.nn.functional.linear(rows, weight, bias)

    return apply


def packed_linear(weight: Any, bias: Any = None) -> Linear:
    """The product of oneDNN over a packed copy of the weights."""
    outputs, inputs = weight.shape
    multiply = _over_copy(weight, bias)
    sizes = exact_sizes(min(outputs, _OUTPUTS), inputs, weight.dtype)
    return multiply if sizes is None else in_exact_sizes(multiply, inputs, sizes)


def _over_copy(weight: Any, bias: Any) -> Linear:
    # The operator that packs weights refuses inference tensors.
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), LAID_OUT_FOR)
    multiply = torch.ops.mkldnn._linear_pointwise.default

    def apply(rows: Any) -> Any:
        return multiply(rows, packed, bias, "none", [], "")

    return apply


@measured_with_threads
def exact_sizes(outputs: int, inputs: int, dtype: Any) -> tuple[int, ...] | None:
    """For each number of rows the number to multiply instead, so that every row has the same summation order,
    up to the largest exact number; None if any number is exact, or none is. It is measured.
    """
    weight, row = telling_weight(outputs, inputs, dtype)
    kinds = alike(_over_copy(weight, None), row, _COUNTS)
    groups = [
        [count for count, _ in group]
        for kind, group in groupby(zip(_COUNTS, kinds, strict=True), key=itemgetter(1))
        if kind is not None
    ]
    longest = max(groups, key=len, default=list(_COUNTS))
    least, most = longest[0], longest[-1]
    if len(longest) == len(_COUNTS) or least > _MOST_FILLED:
        return None
    return tuple(max(count, least) for count in range(most + 1))


def choose_linear(dtype: Any, device: Any) -> Callable[..., Linear]:
    """`packed_linear` if this machine supports it, else `plain_linear`."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return plain_linear
    try:
        example = packed_linear(torch.zeros(4, 4, dtype=dtype))
        example(torch.zeros(1, 4, dtype=dtype))
    except (RuntimeError, AttributeError, NotImplementedError):
        return plain_linear
    return packed_linear


def replace_products(
    source: Any, linear: Callable[..., Linear], apart: Collection[Any] = ()
) -> list[tuple[Any, Any]]:
    """Make every linear layer of transformers' model `source` but those of `apart` multiply with `linear`;
    layers that share weights share the product (Zamba's blocks).

    Returns these layers with their weights, which they still hold.
    """
    replaced = []
    made: dict[tuple[int, int], Linear] = {}
    for module in source.modules():
        if type(module) not in {torch.nn.Linear, Conv1D} or module in apart:
            continue
        shared = id(module.weight), id(module.bias)
        if shared not in made:
            weight = module.weight.detach()
            if type(module) is Conv1D:  # GPT-2's linear layer, with transposed weights
                weight = weight.t().contiguous()
            made[shared] = linear(weight, module.bias)
        module.forward = made[shared]
        replaced.append((module, module.weight))
    return replaced


def drop_weights(replaced: list[tuple[Any, Any]], check: Callable[[], None]) -> None:
    """Drop the layers' weights, of which `linear` has copies, if `check` still passes: some models read a
    layer's weights directly.
    """
    for module, weight in replaced:
        module.weight = torch.nn.Parameter(weight.new_empty(0), requires_grad=False)
    try:
        check()
    except (RuntimeError, IndexError, ForedraftError):
        for module, weight in replaced:
            module.weight = weight
