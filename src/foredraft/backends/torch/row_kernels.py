"""The kernels of attention by rows, in Triton (described in row_attention.py).

`numbers` is `Batch.numbers`, of `count` rows; `keys` and `values` are a layer's cells. Integers that change
between forwards are not compiled into a kernel, which would otherwise be recompiled for some of them.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def turn(
    heads, heads_row, cos, sin, turn_row, norms, eps,
    half: tl.constexpr, padded: tl.constexpr, normed: tl.constexpr, turned: tl.constexpr,
):  # fmt: skip
    """Normalise one head of one row by its root mean square, then rotate it, in place. Each number and the
    one half a head away from it belong to one thread, which reads both before it writes them.
    """
    row, head, at = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.arange(0, padded)
    inside = at < half
    start = heads + row * heads_row + head * 2 * half + at
    low = tl.load(start, mask=inside, other=0.0)
    high = tl.load(start + half, mask=inside, other=0.0)
    kind = low.dtype
    if normed:
        first, second = low.to(tl.float32), high.to(tl.float32)
        squares = tl.sum(first * first + second * second, 0)
        share = tl.rsqrt(squares / (2 * half) + eps)
        weights = norms + head * 2 * half + at
        low = (first * share).to(kind) * tl.load(weights, mask=inside, other=0.0)
        high = (second * share).to(kind) * tl.load(weights + half, mask=inside, other=0.0)
    if turned:
        along, across = cos + row * turn_row + at, sin + row * turn_row + at
        new_low = low * tl.load(along, mask=inside, other=0.0)
        new_high = high * tl.load(along + half, mask=inside, other=0.0)
        new_low += (high * tl.load(across, mask=inside, other=0.0)).to(kind)
        new_high += (low * tl.load(across + half, mask=inside, other=0.0)).to(kind)
        low, high = new_low, new_high
    tl.store(start, low.to(kind), mask=inside)
    tl.store(start + half, high.to(kind), mask=inside)


@triton.jit(do_not_specialize=["count"])
def write(
    kv, kv_row, kv_pair, keys, values, cache_seq, cache_head, numbers, count,
    size: tl.constexpr, padded: tl.constexpr, sequence: tl.constexpr, to: tl.constexpr,
):  # fmt: skip
    """Write a row's keys and values of one head to its cell; padding rows have none."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    at = tl.arange(0, padded)
    cell = tl.load(numbers + to * count + row)
    inside = (at < size) & (cell >= 0)
    place = tl.load(numbers + sequence * count + row) * cache_seq + head * cache_head + cell * size + at
    source = kv + row * kv_row + head * size + at
    tl.store(keys + place, tl.load(source, mask=inside), mask=inside)
    tl.store(values + place, tl.load(source + kv_pair, mask=inside), mask=inside)


@triton.jit(do_not_specialize=["count", "origin", "stretches"])
def partial(
    q, q_row, q_head, keys, values, cache_seq, cache_head, numbers, count, paths, tiles, origin,
    sums, tops, stretches, scale,
    sequence: tl.constexpr, unbroken: tl.constexpr, position: tl.constexpr, size: tl.constexpr,
    padded: tl.constexpr, shared: tl.constexpr, height: tl.constexpr, width: tl.constexpr,
    stretch: tl.constexpr, tiled: tl.constexpr, branched: tl.constexpr, path: tl.constexpr,
    precision: tl.constexpr,
):  # fmt: skip
    """One range of cells for the rows of a tile, for the query heads that share a key head."""
    group, part = tl.program_id(1).to(tl.int64), tl.program_id(2)
    if tiled:
        first, rows = tl.load(tiles + 2 * tl.program_id(0)), tl.load(tiles + 2 * tl.program_id(0) + 1)
    else:
        first, rows = tl.program_id(0).to(tl.int64), 1
    line, at, block = tl.arange(0, height), tl.arange(0, padded), tl.arange(0, width)
    row, head = first + line // shared, group * shared + line % shared
    real = line // shared < rows
    seen = tl.load(numbers + position * count + row, mask=real, other=-1) + 1
    # In a chain the last row sees the most contiguous cells; a row of a tree is alone.
    straight = tl.load(numbers + unbroken * count + first + rows - 1)
    base = tl.load(numbers + sequence * count + first) * cache_seq + group * cache_head
    most = tl.max(seen, 0)
    begin = part * stretch
    if begin < most:
        inside = at < size
        query = tl.load(
            q + row[:, None] * q_row + head[:, None] * q_head + at[None, :],
            mask=real[:, None] & inside[None, :], other=0.0,
        )  # fmt: skip
        top = tl.full([height], float("-inf"), tl.float32)
        weight = tl.zeros([height], tl.float32)
        total = tl.zeros([height, padded], tl.float32)
        for start in range(begin, tl.minimum(begin + stretch, most), width):
            place = start + block
            there = place < most
            cell = place.to(tl.int64)
            if branched:
                after = place - straight
                back = tl.load(paths + first * path + after, mask=there & (after >= 0), other=0)
                cell = tl.where(after >= 0, straight + back, cell)
            where = base + cell[:, None] * size + at[None, :]
            known = there[:, None] & inside[None, :]
            key = tl.load(keys + where, mask=known, other=0.0)
            scores = tl.dot(query, tl.trans(key), input_precision=precision) * scale
            scores = tl.where(place[None, :] < seen[:, None], scores, float("-inf"))
            higher = tl.maximum(top, tl.max(scores, 1))
            shares = tl.exp2(scores - higher[:, None])
            fade = tl.exp2(top - higher)
            value = tl.load(values + where, mask=known, other=0.0)
            weight = weight * fade + tl.sum(shares, 1)
            added = tl.dot(shares.to(value.dtype), value, input_precision=precision)
            total = total * fade[:, None] + added
            top = higher
        slot = ((row - origin) * (shared * tl.num_programs(1)) + head) * stretches + part
        kept = real & (begin < seen)
        tl.store(tops + 2 * slot, top, mask=kept)
        tl.store(tops + 2 * slot + 1, weight, mask=kept)
        tl.store(sums + slot[:, None] * size + at[None, :], total, mask=kept[:, None] & inside[None, :])


@triton.jit(do_not_specialize=["count", "origin", "stretches"])
def combine(
    sums, tops, stretches, out, numbers, count, origin,
    position: tl.constexpr, size: tl.constexpr, padded: tl.constexpr, heads: tl.constexpr,
    stretch: tl.constexpr,
):  # fmt: skip
    """Add the ranges of one row and query head in order; zeros for a padding row."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = tl.arange(0, padded)
    seen = tl.load(numbers + position * count + origin + row) + 1
    inside = at < size
    top, weight, total = float("-inf"), 0.0, tl.zeros([padded], tl.float32)
    slot = (row * heads + head) * stretches
    for _ in range((seen + stretch - 1) // stretch):
        own = tl.load(tops + 2 * slot)
        higher = tl.maximum(top, own)
        fade, share = tl.exp2(top - higher), tl.exp2(own - higher)
        weight = weight * fade + tl.load(tops + 2 * slot + 1) * share
        total = total * fade + tl.load(sums + slot * size + at, mask=inside, other=0.0) * share
        top = higher
        slot += 1
    found = total / tl.where(weight > 0, weight, 1.0)
    tl.store(out + ((origin + row) * heads + head) * size + at, found.to(out.dtype.element_ty), mask=inside)
