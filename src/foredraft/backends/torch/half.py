"""Products in fp32 over weights stored in fp16, if that is lossless.

Most checkpoints are stored in bf16 or fp16. A processor without instructions for these computes in fp32, and
its products are limited by reading weights, which take half as many bytes just as exactly: FBGEMM widens them
in registers and sums in fp32. A forward of the default model then takes 0.6 to 0.7 of the time.

fp16 has a smaller range than bf16, so a weight is multiplied by a power of two beforehand, and its products
are divided by it: both exact. A weight that would still lose a bit uses the other product.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from foredraft.backends.torch.exact_sizes import (
    alike,
    in_exact_sizes,
    measured_with_threads,
    telling_weight,
)
from foredraft.backends.torch.linear import Linear, choose_linear, packed_linear

MOST = 120
"""Rows multiplied at once; FBGEMM itself divides more rows into such blocks."""

LEAST_INPUTS = 256
"""Minimum inputs: FBGEMM pads weights to a multiple of 512 inputs, so with fewer than half of that fp16 takes
more memory than fp32. And such a small weight fits the processor's caches, where oneDNN is faster (32 µs
against 49 for 64 inputs and 576 outputs).
"""

_TOP = 16
"""fp16 can represent numbers below two to this power, rounded to 11 bits."""
_STEEPEST = 60
"""Maximum power of two: only very unusual weights need more, which could overflow a bias."""
_SLICE = 1 << 20
_COLUMNS = 37  # two blocks of FBGEMM and a remainder


class Products:
    """Creates the products of one model: over weights in fp16 if that is exact and faster, else with
    `otherwise`.
    """

    def __init__(self, otherwise: Callable[..., Linear], *, halves: bool) -> None:
        self._otherwise = otherwise
        self.halves = halves
        """Whether suitable weights are stored in fp16."""
        self._made = {"half": 0, "otherwise": 0}

    @property
    def copies(self) -> bool:
        """Whether each product has a copy of its weights."""
        return self._otherwise is packed_linear

    def __call__(self, weight: Any, bias: Any = None) -> Linear:
        large = weight.shape[1] >= LEAST_INPUTS
        found = half_linear(weight, bias) if self.halves and large else None
        self._made["half" if found else "otherwise"] += 1
        return found or self._otherwise(weight, bias)

    def describe(self) -> str:
        """A description of the products."""
        name = "packed" if self.copies else "plain"
        half, other = self._made.values()
        if not half:
            return name
        return f"half, {name} for {other} of {half + other} weights" if other else "half"


def choose_products(dtype: Any, device: Any) -> Products:
    """Products for weights of `dtype` on `device`."""
    linear = choose_linear(dtype, device)
    return Products(linear, halves=dtype == torch.float32 and linear is packed_linear and _has_halves())


def half_linear(weight: Any, bias: Any = None) -> Linear | None:
    """FBGEMM's product over a copy of the weights in fp16; None if that would lose a bit, or if its bits
    depend on the number of rows in any case. `weight` has shape (outputs, inputs).
    """
    power = _exact_power(weight.detach())
    if power is None:
        return None
    sizes = exact_sizes(weight.shape[1])
    if sizes is None:
        return None
    scaled = None if bias is None else bias.detach() * 2.0**power
    packed = torch.ops.quantized.linear_prepack_fp16(weight.detach() * 2.0**power, scaled)
    multiply = torch.ops.quantized.linear_dynamic_fp16
    back = torch.tensor(2.0**-power)  # a tensor: torch multiplies by it faster than by a number
    return in_exact_sizes(lambda rows: multiply(rows, packed).mul_(back), weight.shape[1], sizes)


def _exact_power(weight: Any) -> int | None:
    """The power of two by which the weight is scaled to fit fp16 without the loss of a bit, or None."""
    if not weight.numel():
        return None
    ends = [abs(float(end)) for end in weight.aminmax()]
    if not all(map(math.isfinite, ends)):
        return None
    top = max(ends)
    power = max(-_STEEPEST, min(_TOP - math.frexp(top)[1], _STEEPEST)) if top else 0
    # In slices, so that most fp32 weights are refused after the first one.
    for part in weight.split(max(1, _SLICE // weight.shape[1])):
        scaled = part * 2.0**power
        if not torch.equal(scaled.half().float(), scaled):
            return None
    return power


@measured_with_threads
def exact_sizes(inputs: int) -> tuple[int, ...] | None:
    """For each number of rows up to `MOST` the number to multiply instead (at least as many), so that every
    row has the same summation order; None if there is no way.

    FBGEMM divides a block of rows between kernels of up to six rows (14 with AVX512), and those of one and
    two sum in another order than the others. The numbers of rows that use them are measured, with this number
    of `inputs`.
    """
    weight, row = telling_weight(_COLUMNS, inputs, torch.float16)
    packed = torch.ops.quantized.linear_prepack_fp16(weight.float(), None)
    counts = range(MOST + 1)[:0:-1]
    kinds = alike(lambda rows: torch.ops.quantized.linear_dynamic_fp16(rows, packed), row.float(), counts)
    if kinds[0] is None:
        return None
    sizes: list[int] = []
    for count, kind in zip(counts, kinds, strict=True):
        sizes.append(count if kind == kinds[0] else sizes[-1])
    return (0, *reversed(sizes))


@measured_with_threads
def _has_halves() -> bool:
    """Whether this torch was built with FBGEMM, and this processor can run it."""
    if "fbgemm" not in torch.backends.quantized.supported_engines:
        return False
    try:
        return exact_sizes(96) is not None
    except (RuntimeError, AttributeError, NotImplementedError):
        return False
