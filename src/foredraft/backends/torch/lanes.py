"""Elementwise functions with the same result at every position of a row.

A processor computes exp() and similar functions for several numbers at once, and the remainder in another
way, which rounds differently. So a row's bits would depend on where it ends, and thus on the number of rows.
If torch divides the numbers between threads, every part has an end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from transformers import activations

LANES = 64
"""Rows padded to a multiple of this have no remainder, on any processor."""

_STEPS = {"AVX512": 32, "DEFAULT": 16}
_STEP = _STEPS.get(torch.backends.cpu.get_cpu_capability(), 16)
"""Numbers that torch processes at once: two registers."""

_POINTWISE = frozenset({"exp", "gelu", "log_sigmoid", "logsigmoid", "sigmoid", "silu", "softplus", "tanh"})


SERIAL = 1 << 14
"""This many numbers are never divided between threads: GELU's limit, and half of the other functions'."""

_OF_ROWS = frozenset({"GLU", "LogSoftmax", "MultiheadAttention", "Softmax", "Softmax2d", "Softmin"})
"""torch's activation functions that are not elementwise."""


def by_lanes(function: Callable[[Any], Any], rows: Any) -> Any:
    """`function` of every number, in rows without remainder, divided between threads only at multiples of
    `LANES`. Shape (rows, size). A GPU computes every number alike without this.
    """
    if rows.device.type != "cpu":
        return function(rows)
    size = rows.shape[1]
    if size % LANES:
        rows = functional.pad(rows, (0, -size % LANES))
    parts = [rows] if _divided_well(rows.numel()) else rows.split(max(1, SERIAL // rows.shape[1]))
    made = [function(part.contiguous()) for part in parts]
    return (made[0] if len(made) == 1 else torch.cat(made))[:, :size]


def _divided_well(numbers: int) -> bool:
    """Whether this many are a multiple of `LANES` for every thread, whatever the number of threads."""
    threads = torch.get_num_threads()
    return numbers <= SERIAL or not any(-(-numbers // many) % LANES for many in range(2, threads + 1))


def align_activations(source: Any, apart: Collection[Any] = ()) -> None:
    """Make every activation of transformers' model `source` but those of `apart` compute by lanes.

    This also makes its input contiguous: for half of a layer's output (gate and up in one product) torch
    computes GELU with another kernel, except for a single row, which has no gap to the next.
    """
    for module in source.modules():
        known = type(module).__module__ in {torch.nn.modules.activation.__name__, activations.__name__}
        if known and type(module).__name__ not in _OF_ROWS and module not in apart:
            module.forward = partial(_activated, module.forward)


def _activated(forward: Callable[[Any], Any], values: Any) -> Any:
    made = by_lanes(forward, values.reshape(-1, values.shape[-1]))
    return made.reshape(values.shape)


class _Evenly(TorchFunctionMode):  # type: ignore[misc]
    """While entered, such functions are computed by lanes if there would be a remainder."""

    def __init__(self) -> None:
        super().__init__()
        self.met = False
        self.widest = 0

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        options = kwargs or {}
        if getattr(func, "__name__", "") not in _POINTWISE or not args[0].ndim:
            return func(*args, **options)
        values, *others = args
        left_over = values.shape[-1] % _STEP
        self.met |= bool(left_over)
        self.widest = max(self.widest, values.shape[-1])
        if not left_over and _divided_well(values.numel()):
            return func(*args, **options)
        made = by_lanes(lambda rows: func(rows, *others, **options), values.reshape(-1, values.shape[-1]))
        return made.reshape(values.shape)


def evenly(forward: Callable[..., Any]) -> Callable[..., Any]:
    """A layer's forward over rows of shape (…, size), with every number computed like the others. Whether
    this is needed is determined in the first call; if not, it costs nothing from then on, unless there are
    enough rows to be divided between threads.
    """
    mode = _Evenly()
    seen = False

    def apply(*args: Any, **options: Any) -> Any:
        nonlocal seen
        if seen and not mode.met and _rows(args, options) * mode.widest <= SERIAL:
            return forward(*args, **options)
        seen = True
        with mode:
            return forward(*args, **options)

    return apply


def _rows(args: tuple[Any, ...], options: dict[str, Any]) -> int:
    """The number of rows of a layer's first tensor."""
    first = next(value for value in (*args, *options.values()) if torch.is_tensor(value))
    return int(first.numel() // max(1, first.shape[-1]))
