"""Functions of single numbers, computed alike for every number of a row.

A processor computes exp() and the like for several numbers at once, and for what is left over another way,
which rounds differently. So a row's bits would depend on where it ends, and that on how many rows there are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

LANES = 64
"""Rows padded to a multiple of this have nothing left over, on any processor."""

_STEPS = {"AVX512": 32, "DEFAULT": 16}
_STEP = _STEPS.get(torch.backends.cpu.get_cpu_capability(), 16)
"""Numbers that torch takes at once: two registers of them."""

_POINTWISE = frozenset({"exp", "gelu", "log_sigmoid", "logsigmoid", "sigmoid", "silu", "softplus", "tanh"})


def by_lanes(function: Callable[[Any], Any], rows: Any) -> Any:
    """`function` of every number, in rows without anything left over."""
    size = rows.shape[1]
    padded = functional.pad(rows, (0, -size % LANES)).contiguous()
    return function(padded)[:, :size]


class _Evenly(TorchFunctionMode):  # type: ignore[misc]
    """While this is entered, such functions are computed by lanes where something would be left over."""

    def __init__(self) -> None:
        super().__init__()
        self.met = False

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        options = kwargs or {}
        if getattr(func, "__name__", "") not in _POINTWISE or not _leaves_over(args[0]):
            return func(*args, **options)
        self.met = True
        values, *others = args
        made = by_lanes(lambda rows: func(rows, *others, **options), values.reshape(-1, values.shape[-1]))
        return made.reshape(values.shape)


def _leaves_over(values: Any) -> bool:
    return bool(values.ndim and values.shape[-1] % _STEP)


def evenly(forward: Callable[..., Any]) -> Callable[..., Any]:
    """A layer's forward, with every number computed like the others. Whether it needs that is seen when it is
    first called; if it does not, it costs nothing from then on.
    """
    mode = _Evenly()
    seen = False

    def apply(*args: Any, **options: Any) -> Any:
        nonlocal seen
        if seen and not mode.met:
            return forward(*args, **options)
        seen = True
        with mode:
            return forward(*args, **options)

    return apply
