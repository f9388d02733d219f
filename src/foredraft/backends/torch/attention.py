"""Attention of packed rows over the KV cache.

On a processor (`attend_in_blocks`) a row's result must not depend, bit for bit, on the number of rows and
cells computed with it (docs/exactness.md). Three measures ensure that: a product never has fewer than
`least_rows` rows, so that it becomes neither a matrix-vector product nor one of MKL's for small matrices;
sums over cells go block by block, at fixed positions, and cells after a row's own add exact zeros; and the
rows of a tree are computed branch by branch, each in the cell where it would be in a chain.

On other devices (`attend_masked`) one call of torch's attention computes all rows of a sequence, with a mask;
on CUDA `sdpa_kernels.py` restricts the kernels that torch may choose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch

from foredraft.backends.torch.batch import Batch, Segment, ancestors
from foredraft.backends.torch.exact_sizes import alike, measured_with_threads, telling_weight
from foredraft.backends.torch.kv import BLOCK, Layer

LEAST_ROWS = 4
"""Sufficient for heads of at most 64 numbers."""

MEASURED_ROWS = (2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 16, 24, 32, 64, 128)
MEASURED_CELLS = (64, 192, 2304)

STEP = 64
"""Cells of the first, incomplete block are padded to a multiple of this."""

SCORES = 1 << 22
"""Maximum attention scores of one sequence computed at once."""

CHUNK = 128
"""Maximum rows of one sequence computed at once."""

ALIGNED = 16
"""Alignment of a mask's rows, in numbers: the maximum that GPU kernels read at once."""

SIDE_BY_SIDE = 64
NEARLY = 256
"""Maximum rows, and maximum difference of positions, of sequences that are computed side by side. With 8
sequences of one row each a forward of a 135M model took 98 ms, and 125 ms one after another.
"""


@dataclass(frozen=True, slots=True)
class Style:
    """Variants of a layer's attention. `window`: how many cells back a row sees, including its own;
    `softcap`: scores are squeezed into ± this; `sinks`: a score for each head that only takes part in the
    sum. `until`: every row sees the cells up to this one, also those after its own.
    """

    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: Any = None
    until: int | None = None


class Attention(Protocol):
    """Appends keys and values to the cache and returns the result for the queries.

    `kv` is a pair of shape (rows, heads, size) each, or, if they are adjacent in memory, one tensor of shape
    (rows, 2, heads, size), which is written in one copy.
    """

    def __call__(self, layer: Layer, batch: Batch, q: Any, kv: Any, *, style: Style) -> Any: ...


def choose_attention(device: Any) -> Attention:
    """`attend_in_blocks` on a processor, `attend_masked` on other devices."""
    return attend_in_blocks if device.type == "cpu" else attend_masked


def cells_dtype(dtype: Any, device: Any) -> Any:
    """The number format of the KV cache of a model computed in `dtype`. On a processor it is never shorter
    than fp32: torch copies bf16 before it multiplies it, all cells in every forward, and the products
    themselves are optimised for more rows. Scores and sums over 576 cells took 830 µs a layer in bf16, 70 in
    fp32.
    """
    return torch.float32 if device.type == "cpu" and dtype.itemsize < torch.float32.itemsize else dtype


# --- exact, on a processor -----------------------------------------------------------------------------


def attend_in_blocks(layer: Layer, batch: Batch, q: Any, kv: Any, *, style: Style) -> Any:
    """See the module. Returns shape (rows, query heads, value size)."""
    runs = batch.scratch.get("runs") or batch.scratch.setdefault("runs", _runs(batch.segments))
    parts = [_run(layer, batch, run, q, kv, style=style) for run in runs]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _run(layer: Layer, batch: Batch, run: Sequence[Segment], q: Any, kv: Any, *, style: Style) -> Any:
    """Attention of adjacent sequences."""
    first, end = run[0].first, run[-1].end
    if end - first < len(q):
        q, kv = q[first:end], _rows_of(kv, slice(first, end))
    if run[0].branches:
        return _tree(layer, batch, run[0], q, kv, style=style)
    if len(run) == 1:
        _write(layer, run[0].seq, run[0].start, kv)
        if run[0].blocks:
            return _with_blocks(layer, batch, run[0], q, style=style)
    else:
        for segment in run:
            rows = slice(segment.first - first, segment.end - first)
            _write(layer, segment.seq, segment.start, _rows_of(kv, rows))
    return _in_chunks(layer, batch, run[0].seq, q, tuple(segment.start for segment in run), style=style)


def _with_blocks(layer: Layer, batch: Batch, segment: Segment, q: Any, *, style: Style) -> Any:
    """Attention of a chain with images whose rows see all of each other: the parts between them as always,
    and each image over the cells up to its end.
    """
    parts, done = [], segment.start
    edges = [edge for block in segment.blocks for edge in block]
    for number, end in enumerate([*edges, segment.start + segment.count]):
        if end > done:
            rows = q[done - segment.start : end - segment.start]
            style_here = replace(style, until=end if number % 2 else None)
            parts.append(_in_chunks(layer, batch, segment.seq, rows, (done,), style=style_here))
            done = end
    return torch.cat(parts)


def _rows_of(kv: Any, rows: Any) -> Any:
    return tuple(part[rows] for part in kv) if isinstance(kv, tuple) else kv[rows]


def _write(layer: Layer, seq: int, start: int, kv: Any) -> None:
    keys, values, both = layer.view(seq, partial(_cells_of, seq))
    if not isinstance(kv, tuple):
        both.narrow(2, start, len(kv)).copy_(kv.permute(1, 2, 0, 3))
        return
    for buffer, rows in zip((keys, values), kv, strict=True):
        buffer.narrow(1, start, len(rows)).copy_(rows.transpose(0, 1))


def _cells_of(seq: int, layer: Layer) -> tuple[Any, Any, Any]:
    """A sequence's keys and values, of shape (heads, cells, size), and both in one tensor if they are
    adjacent.
    """
    return layer.keys[seq], layer.values[seq], None if layer.both is None else layer.both[:, seq]


def _tree(layer: Layer, batch: Batch, segment: Segment, q: Any, kv: Any, *, style: Style) -> Any:
    """Compute a tree branch by branch; afterwards every row is in its own cell."""
    out = None
    for branch in segment.branches:
        path = branch.path - segment.first
        _write(layer, segment.seq, segment.start, _rows_of(kv, path))
        new = path[-branch.new :]
        start = segment.start + len(path) - branch.new
        seen = _in_chunks(layer, batch, segment.seq, q[new], (start,), style=style)
        out = q.new_empty(len(q), *seen.shape[1:]) if out is None else out
        out[new] = seen
    _write(layer, segment.seq, segment.start, kv)
    return out


def _runs(segments: Sequence[Segment]) -> list[list[Segment]]:
    """Groups of adjacent sequences with equally many rows and similar lengths, computed side by side."""
    runs: list[list[Segment]] = []
    for segment in segments:
        last = runs[-1][-1] if runs else None
        if (
            last is not None
            and not (last.branches or segment.branches or last.blocks or segment.blocks)
            and (segment.seq, segment.count) == (last.seq + 1, last.count)
            and abs(segment.start - last.start) <= NEARLY
            and segment.count <= SIDE_BY_SIDE
        ):
            runs[-1].append(segment)
        else:
            runs.append([segment])
    return runs


def _in_chunks(layer: Layer, batch: Batch, seq: int, q: Any, starts: tuple[int, ...], *, style: Style) -> Any:
    """Chains at positions `starts` and after; long ones in parts, each over the cells that it sees."""
    count, heads = q.shape[0] // len(starts), q.shape[1]
    most = max(LEAST_ROWS, min(CHUNK, SCORES // (heads * (max(starts) + count))))
    if len(starts) > 1 or count <= most:
        return _chains(layer, batch, seq, q, starts, style=style)
    return torch.cat(
        [
            _chains(layer, batch, seq, q[i : i + most], (starts[0] + i,), style=style)
            for i in range(0, count, most)
        ]
    )


@dataclass(frozen=True, slots=True)
class _Plan:
    """Buffers and masks that a forward's layers with the same heads share, for rows of some chains: of shapes
    (sequences × groups, filled, …), padded to as many rows as a product needs.
    """

    key: tuple[int, int, int]
    """The first sequence, the number of sequences, and their cells."""
    queries: Any
    asked: Any
    """The part of `queries` without padding: (sequences, groups, rows, heads of a group, size)."""
    hidden: Any


def _chains(layer: Layer, batch: Batch, seq: int, q: Any, starts: tuple[int, ...], *, style: Style) -> Any:
    """Rows of shape (sequences × rows, query heads, size), over as many cells as the longest of them sees."""
    many, groups = len(starts), layer.keys.shape[1]
    total_rows, heads, size = q.shape
    shape = (many, total_rows // many, groups, heads // groups, size)
    key = (seq, starts, shape, style.window, style.until)
    plan = batch.scratch.get(key)
    if plan is None:
        plan = batch.scratch[key] = _plan(seq, starts, shape, style=style, dtype=layer.keys.dtype)
    plan.asked.copy_(q.view(shape).transpose(1, 2))
    keys, values = layer.view(plan.key, partial(_seen, plan.key))
    total = _weighted(_softmax(_scores(plan, keys, style), style.sinks, groups, shape[1]), values)
    found = total[:, : shape[1] * shape[3]].view(*plan.asked.shape[:-1], -1).transpose(1, 2)
    return found.to(q.dtype).reshape(total_rows, heads, -1)


def _plan(seq: int, starts: tuple[int, ...], shape: tuple[int, ...], *, style: Style, dtype: Any) -> _Plan:
    many, count, groups, shared, size = shape
    cells = _padded(style.until or max(starts) + count)
    filled = max(count * shared, least_rows(size))
    queries = torch.zeros(many * groups, filled, size, dtype=dtype)
    asked = queries[:, : count * shared].view(many, groups, count, shared, size)
    hidden = _hidden(starts, count, cells, filled, groups=groups, shared=shared, style=style, dtype=dtype)
    return _Plan((seq, many, cells), queries, asked, hidden)


def _seen(key: tuple[int, int, int], layer: Layer) -> tuple[Any, tuple[Any, ...]]:
    """Keys of shape (sequences × heads, size, cells), and values block by block."""
    seq, many, cells = key
    keys = layer.keys[seq : seq + many, :, :cells].flatten(0, 1).transpose(1, 2)
    return keys, layer.values[seq : seq + many, :, :cells].flatten(0, 1).split(BLOCK, 1)


@measured_with_threads
def least_rows(size: int) -> int:
    """The minimum rows of a product with keys of `size` numbers for the same summation order as with many
    rows.

    It is measured: MKL for AVX-512 has separate kernels for up to 2 rows of 64 numbers, 5 of 128 and 10 of
    256.
    """
    keys, row = telling_weight(max(MEASURED_CELLS), size, torch.float32)
    least = LEAST_ROWS
    for cells in MEASURED_CELLS:
        kinds = alike(partial(_twice, keys[:cells].t()), row, MEASURED_ROWS)
        after = zip(kinds, MEASURED_ROWS[1:], strict=False)
        least = max([least, *(rows for kind, rows in after if kind is None or kind != kinds[-1])])
    return least


def _twice(keys: Any, rows: Any) -> Any:
    """Duplicate a single head: MKL has another kernel for one head."""
    return torch.bmm(rows.expand(2, -1, -1), keys.expand(2, -1, -1))[0]


def _scores(plan: _Plan, keys: Any, style: Style) -> Any:
    """Scaled products of queries and keys; -inf where rows must not look.

    The queries are scaled instead of the products: MKL's kernels for AVX-512 multiply with a factor before
    the summation for some numbers of rows, and after it for others.
    """
    if style.softcap is None:
        return torch.baddbmm(plan.hidden, plan.queries.mul_(style.scale), keys)
    scores = torch.bmm(plan.queries, keys).mul_(style.scale)
    return torch.tanh(scores / style.softcap).mul_(style.softcap).add_(plan.hidden)


def _weighted(weights: Any, values: tuple[Any, ...]) -> Any:
    """The sum over cells, block by block."""
    if len(values) == 1:
        return torch.bmm(weights, values[0])
    parts = weights.split(BLOCK, 2)
    total = torch.bmm(parts[0], values[0])
    for part, block in zip(parts[1:], values[1:], strict=True):
        total += torch.bmm(part, block)
    return total


def _padded(cells: int) -> int:
    step = STEP if cells <= BLOCK else BLOCK
    return -(-cells // step) * step


def _hidden(
    starts: tuple[int, ...],
    count: int,
    cells: int,
    filled: int,
    *,
    groups: int,
    shared: int,
    style: Style,
    dtype: Any,
) -> Any:
    """The addition to the scores: -inf where a row must not look, 0 elsewhere. Padding rows look where the
    first one does. Shape (sequences × groups, filled, cells), or (1, filled, cells) for one sequence.
    """
    positions = torch.tensor(starts)[:, None] + torch.arange(count).repeat_interleave(shared)
    if positions.shape[1] < filled:
        fill = positions[:, :1].expand(-1, filled - positions.shape[1])
        positions = torch.cat([positions, fill], 1)
    cell, position = torch.arange(cells), positions[..., None]
    unseen = (
        cell > position if style.until is None else (cell >= style.until).expand(*position.shape[:-1], -1)
    )
    if style.window is not None:
        unseen = unseen | (cell <= position - style.window)
    hidden = torch.zeros(unseen.shape, dtype=dtype).masked_fill_(unseen, float("-inf"))
    return hidden if len(starts) == 1 else hidden.repeat_interleave(groups, 0)


def _softmax(scores: Any, sinks: Any, groups: int, count: int) -> Any:
    if sinks is None:
        return torch.softmax(scores, -1)
    shared = sinks.numel() // groups
    sink = sinks.float().view(groups, 1, shared).expand(groups, count, shared).reshape(groups, -1, 1)
    if sink.shape[1] < scores.shape[1]:
        sink = torch.nn.functional.pad(sink, (0, 0, 0, scores.shape[1] - sink.shape[1]))
    sink = sink.repeat(len(scores) // groups, 1, 1)
    top = torch.maximum(scores.amax(-1, keepdim=True), sink)
    weights = torch.exp(scores - top)
    return weights / (weights.sum(-1, keepdim=True) + torch.exp(sink - top))


# --- fast, elsewhere -----------------------------------------------------------------------------------


def attend_masked(layer: Layer, batch: Batch, q: Any, kv: Any, *, style: Style) -> Any:
    """See the module. Returns shape (rows, query heads, value size)."""
    k, v = kv if isinstance(kv, tuple) else kv.unbind(1)
    out = q.new_empty((*q.shape[:2], v.shape[2]))
    for segment in batch.segments:
        rows, end = slice(segment.first, segment.end), segment.start + segment.count
        keys, values = layer.keys[segment.seq], layer.values[segment.seq]
        keys[:, segment.start : end] = k[rows].transpose(0, 1)
        values[:, segment.start : end] = v[rows].transpose(0, 1)
        groups = keys.shape[0]
        shared = q.shape[1] // groups
        grouped = q[rows].view(segment.count, groups, shared, -1).transpose(0, 1).flatten(1, 2)
        mask = _mask(batch, segment, shared, style.window, q)
        seen = masked_attention(
            grouped, keys[:, :end], values[:, :end], mask, style=style, count=segment.count
        )
        out[rows] = seen.view(groups, segment.count, shared, -1).transpose(0, 1).flatten(1, 2)
    return out


def _mask(batch: Batch, segment: Segment, shared: int, window: int | None, q: Any) -> Any:
    """The addition to the scores: -inf where a row must not look, 0 elsewhere; shape (rows × shared, cells),
    in the format of `q`. Computed once for all layers, and also if each row looks at everything: without a
    mask torch uses another kernel. Rows are aligned to `ALIGNED`, or each layer would copy the mask.
    """
    key = (segment.first, shared, window)
    if key not in batch.scratch:
        cells = segment.start + segment.count
        hidden = q.new_zeros(segment.count, -(-cells // ALIGNED) * ALIGNED)
        if segment.count > 1 or window is not None:
            hidden[:, :cells].masked_fill_(~_looks(batch, segment, window, q.device), float("-inf"))
        batch.scratch[key] = hidden.repeat_interleave(shared, 0)[:, :cells]
    return batch.scratch[key]


def _looks(batch: Batch, segment: Segment, window: int | None, device: Any) -> Any:
    """True where a row looks, shape (rows, cells)."""
    cell = torch.arange(segment.start + segment.count, device=device)
    seen = cell <= cell[segment.start :, None]
    if segment.parents:
        seen[:, segment.start :] = _related(segment.parents).to(device)
    for start, end in segment.blocks:
        seen[start - segment.start : end - segment.start, start:end] = True
    if window is not None:
        position = batch.positions[segment.first : segment.end]
        standing = torch.cat(
            [cell[: segment.start], position]
        )  # a tree's rows are at the position of their depth
        seen &= standing > position[:, None] - window
    return seen


def _related(parents: tuple[int, ...]) -> Any:
    """True where the column is an ancestor of the row, or the row itself."""
    related = torch.zeros(len(parents), len(parents), dtype=torch.bool)
    for row in range(len(parents)):
        related[row, ancestors(parents, row)] = True
    return related


def masked_attention(q: Any, keys: Any, values: Any, mask: Any, *, style: Style, count: int) -> Any:
    """Attention of grouped queries, shape (key heads, `count` rows × heads of a group, size), over cells.

    `mask` is added to the scores; None where nothing is hidden.
    """
    if style.softcap is None and style.sinks is None:
        return torch.nn.functional.scaled_dot_product_attention(
            q[None], keys[None], values[None], attn_mask=mask, scale=style.scale
        )[0]
    scores = torch.bmm(q, keys.transpose(1, 2)).float() * style.scale
    if style.softcap is not None:
        scores = torch.tanh(scores / style.softcap) * style.softcap
    if mask is not None:
        scores = scores + mask
    return torch.bmm(_softmax(scores, style.sinks, q.shape[0], count).to(values.dtype), values)
