"""The cells of a head's one layer, and its attention over them.

A head's rows need not have the same bits in any forward: a wrong draft is only rejected. So this is shorter
than attention.py, and other in two ways: a sequence's rows begin at any position, and a tree grows over
several forwards, of which a row sees its ancestors only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from foredraft.backends.torch.attention import Style, cells_dtype, masked_attention
from foredraft.errors import OutOfKVError, first_line

ROOM = 256
"""Cells that a sequence has at first; it gets twice as many whenever they do not suffice."""

ROWS = 256
"""Maximum rows of one sequence computed at once: a mask of all of a prompt's would be large."""


@dataclass(frozen=True, slots=True)
class HeadSegment:
    """The rows `first` … `first + count - 1` of a head's forward, which go into the cells of sequence `seq`
    from `cell` on. `sees`: which cells up to their own each of them sees, shape (count, cells); None for all.
    """

    seq: int
    first: int
    count: int
    cell: int
    sees: Any = None


class HeadCells:
    """Keys and values of `sequences` sequences. `held` is False for a head whose rows see only themselves."""

    def __init__(self, sequences: int, *, dtype: Any, device: Any, held: bool = True) -> None:
        self._dtype, self._device, self._held = cells_dtype(dtype, device), device, held
        self._buffers: list[tuple[Any, Any] | None] = [None] * sequences
        self._segments: Sequence[HeadSegment] = ()

    def begin(self, segments: Sequence[HeadSegment]) -> None:
        """The rows of the next forward."""
        self._segments = segments

    def attend(self, q: Any, k: Any, v: Any, style: Style) -> Any:
        """Append keys and values, of shape (rows, key heads, size), and return the result for the queries, of
        shape (rows, query heads, value size). Raises OutOfKVError without memory for more cells.
        """
        if not self._held:
            return v.repeat_interleave(q.shape[1] // v.shape[1], 1)
        out = q.new_empty(*q.shape[:2], v.shape[2])
        for segment in self._segments:
            rows = slice(segment.first, segment.first + segment.count)
            keys, values = self._write(segment, k[rows], v[rows])
            for start in range(0, segment.count, ROWS):
                part = slice(start, start + ROWS)
                sees = None if segment.sees is None else segment.sees[part]
                out[rows][part] = self._attend(q[rows][part], keys, values, sees, style)
        return out

    def _attend(self, q: Any, keys: Any, values: Any, sees: Any, style: Style) -> Any:
        count, heads, size = q.shape
        groups = keys.shape[0]
        shared = heads // groups
        grouped = q.view(count, groups, shared, size).transpose(0, 1).flatten(1, 2).to(keys.dtype)
        mask = None
        if sees is not None:
            mask = torch.zeros(sees.shape, dtype=keys.dtype, device=keys.device)
            mask = mask.masked_fill_(~sees, float("-inf")).repeat_interleave(shared, 0)
        seen = masked_attention(grouped, keys, values, mask, style=style, count=count)
        return seen.view(groups, count, shared, -1).transpose(0, 1).flatten(1, 2).to(q.dtype)

    def _write(self, segment: HeadSegment, k: Any, v: Any) -> tuple[Any, Any]:
        """The sequence's keys and values up to the rows', which are written; shape (heads, cells, size)."""
        end = segment.cell + segment.count
        keys, values = self._with_room(segment.seq, end, k, v)
        for buffer, rows in ((keys, k), (values, v)):
            buffer[:, segment.cell : end] = rows.transpose(0, 1)
        return keys[:, :end], values[:, :end]

    def _with_room(self, seq: int, cells: int, k: Any, v: Any) -> tuple[Any, Any]:
        held = self._buffers[seq]
        if held is not None and held[0].shape[1] >= cells:
            return held
        room = ROOM
        while room < cells:
            room *= 2
        try:
            made = tuple(
                torch.zeros(rows.shape[1], room, rows.shape[2], dtype=self._dtype, device=self._device)
                for rows in (k, v)
            )
        except RuntimeError as error:  # torch.OutOfMemoryError is one; a processor's is not
            raise OutOfKVError(
                f"There is not enough memory for {room} tokens in a head's KV cache ({first_line(error)}).",
                hint="Use a smaller context (--ctx), or no head.",
            ) from None
        for old, new in zip(held or (), made, strict=False):
            new[:, : old.shape[1]] = old
        self._buffers[seq] = (made[0], made[1])
        return made[0], made[1]

    def close(self) -> None:
        """Free the cells."""
        self._buffers = [None] * len(self._buffers)
