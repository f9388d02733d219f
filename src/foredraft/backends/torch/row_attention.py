"""Attention on a GPU in which a row's bits depend only on what the row sees.

Flash-decoding (Dao et al. 2023) as Triton kernels (row_kernels.py). Cells are processed in ranges at fixed
positions of the text: `partial` sums each range by itself, block by block, and `combine` adds the ranges in
order. A block that a row does not see adds exact zeros. So neither other rows, nor later cells, nor the
division between programs (row_plan.py) changes a bit of a row. A row of a tree reads its ancestors in the
order that they would have in a chain, so it has the same bits as there.

The kernels' information about rows is on the device (`Batch.numbers`), and their grid depends only on the
size of the cache: a forward can be recorded once and replayed for any rows (fixed_sizes.py).
"""

from __future__ import annotations

from typing import Any

import torch
import triton

from foredraft.backends.torch.attention import Style
from foredraft.backends.torch.batch import CELL, PATH, POSITION, SEQUENCE, UNBROKEN, Batch
from foredraft.backends.torch.kv import Layer
from foredraft.backends.torch.row_kernels import combine, partial, turn, write
from foredraft.backends.torch.row_plan import HEIGHT, plan_rows

WIDTH = 64
"""Cells of a block."""

WARPS = 4
"""Pipeline stages of a program. More stages would not fit consumer GPUs with wide heads."""

_LOG2_E = 1.4426950408889634


def turn_rows(qk: Any, norms: Any, eps: float, angles: tuple[Any, Any] | None) -> None:
    """A `TurnHeads` (lean.py) that computes every head of every row separately."""
    count, heads, size = qk.shape
    cos, sin = angles or (qk, qk)
    turn[count, heads](
        qk, qk.stride(0), cos, sin, cos.stride(0), qk if norms is None else norms, eps,
        half=size // 2, padded=triton.next_power_of_2(size // 2),
        normed=norms is not None, turned=angles is not None, num_warps=1,
    )  # fmt: skip


def attend_rows(layer: Layer, batch: Batch, q: Any, kv: Any, *, style: Style) -> Any:
    """An `Attention` without windows, caps and sinks. `kv` is one tensor.

    Returns shape (rows, query heads, value size).
    """
    assert (style.window, style.softcap, style.sinks) == (None, None, None)
    count, heads, size = q.shape
    groups = kv.shape[2]
    shared, padded = heads // groups, triton.next_power_of_2(size)
    numbers, cells = batch.numbers, (layer.keys, layer.values, *layer.keys.stride()[:2])
    write[count, groups](
        kv, *kv.stride()[:2], *cells, numbers, count,
        size=size, padded=padded, sequence=SEQUENCE, to=CELL,
    )  # fmt: skip
    plan = batch.scratch.get("row plan") or batch.scratch.setdefault(
        "row plan", plan_rows(batch, q, cells=layer.keys.shape[2], shared=shared)
    )
    out = q.new_empty(count, heads, size)
    for part in plan.parts:
        partial[part.programs, groups, plan.stretches](
            q, *q.stride()[:2], *cells, numbers, count, plan.paths, part.tiles, part.first,
            plan.sums, plan.tops, plan.stretches, style.scale * _LOG2_E,
            sequence=SEQUENCE, unbroken=UNBROKEN, position=POSITION, size=size, padded=padded,
            shared=shared, height=max(HEIGHT, triton.next_power_of_2(shared)), width=WIDTH,
            stretch=plan.stretch, path=PATH, tiled=part.tiles is not None,
            branched=plan.paths is not None, precision="ieee" if q.dtype == torch.float32 else "tf32",
            num_warps=WARPS, num_stages=1 if q.dtype == torch.float32 else 2,
        )  # fmt: skip
        combine[part.rows, heads](
            plan.sums, plan.tops, plan.stretches, out, numbers, count, part.first,
            position=POSITION, size=size, padded=padded, heads=heads, stretch=plan.stretch,
        )  # fmt: skip
    return out
