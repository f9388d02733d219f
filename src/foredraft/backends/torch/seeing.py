"""A model that sees, and the cells of one whose images take fewer rotary positions than rows (M-RoPE).

The position of a token behind an image depends on the images before it, so the cells remember these: where
each begins, how many rows it has, and how many positions it takes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from struct import Struct
from typing import Any

import torch

from foredraft.backends.torch.batch import POSITION, Batch, SeenImage, make_batch, side_by_side
from foredraft.backends.torch.kv import KVCache
from foredraft.backends.torch.model import TorchModel
from foredraft.backends.torch.vision import TorchVision
from foredraft.errors import BackendError
from foredraft.types import Rows

_SIZE = Struct("<q")

Held = tuple[int, int, int]
"""An image's first cell, its rows, and the positions it takes."""


class SeeingCells(KVCache):
    """A KV cache that knows the images of each sequence."""

    def __init__(self, sequences: int, context_length: int, *, dtype: Any, device: Any) -> None:
        super().__init__(sequences, context_length, dtype=dtype, device=device)
        self.images: list[list[Held]] = [[] for _ in range(sequences)]

    def note(self, seq: int, image: Held) -> None:
        """A forward computes rows of an image."""
        if image not in self.images[seq]:
            self.images[seq] = [*(held for held in self.images[seq] if held[0] < image[0]), image]

    def truncate(self, seq: int, length: int) -> None:
        super().truncate(seq, length)
        self._drop(seq, length)

    def keep_path(self, seq: int, start: int, path: Sequence[int]) -> None:
        super().keep_path(seq, start, path)
        self._drop(seq, self.lengths[seq])

    def fork(self, src: int, dst: int, length: int) -> None:
        super().fork(src, dst, length)
        self.images[dst] = list(self.images[src])
        self._drop(dst, length)

    def snapshot(self, seq: int) -> bytearray:
        """The images as JSON behind its length, then the cells."""
        images = json.dumps(self.images[seq]).encode()
        return bytearray(_SIZE.pack(len(images))) + images + super().snapshot(seq)

    def restore(self, seq: int, snapshot: bytearray | memoryview) -> None:
        self.release(seq)
        view = memoryview(snapshot)
        size = _SIZE.unpack_from(view)[0] if len(view) >= _SIZE.size else -1
        try:
            if size < 0:
                raise ValueError
            images = json.loads(bytes(view[_SIZE.size : _SIZE.size + size]))
            held = [(int(start), int(rows), int(taken)) for start, rows, taken in images]
        except (ValueError, TypeError):
            raise BackendError("This is not a snapshot of this model, or it is incomplete.") from None
        super().restore(seq, bytearray(view[_SIZE.size + size :]))  # of its own: numbers are aligned there
        self.images[seq] = held

    def release(self, seq: int) -> None:
        super().release(seq)
        self.images[seq] = []

    def undo(self, seq: int) -> None:
        self._drop(seq, self.lengths[seq])
        super().undo(seq)

    def _drop(self, seq: int, length: int) -> None:
        self.images[seq] = [held for held in self.images[seq] if held[0] < length]


class SeeingModel(TorchModel):
    """A model that images can be given to, once it has a `vision`."""

    _vision: TorchVision | None = None

    @property
    def vision(self) -> TorchVision | None:
        return self._vision

    def see(self, vision: TorchVision) -> None:
        """From now on images can be prepared."""
        self._vision = vision

    def _compute(self, batch: Sequence[Rows]) -> tuple[Any, Any]:
        whole = self._vision is not None and not self._vision.chunk
        packed = make_batch(batch, self._device, whole=whole)
        if isinstance(self._cache, SeeingCells):
            packed = with_places(packed, batch, self._cache)
        logits = self._forward(packed).float().cpu()
        return logits, side_by_side(packed, batch)

    def close(self) -> None:
        if self._vision is not None:
            self._vision.close()
        super().close()


def with_places(batch: Batch, rows: Sequence[Rows], cells: SeeingCells) -> Batch:
    """The batch with its rotary positions; the images among the rows are noted in the cells."""
    for part in rows:
        for span in part.images:
            data = span.image.data
            assert isinstance(data, SeenImage)
            cells.note(part.seq, (span.start - span.first, span.image.runs[span.run][1], data.advance))
    standing = batch.numbers[POSITION]
    places = standing.repeat(3, 1)
    for segment in batch.segments:
        own = slice(segment.first, segment.end)
        for start, count, taken in cells.images[segment.seq]:
            behind = standing[own] >= start + count
            places[:, own] -= torch.where(behind, count - taken, 0)
    for part in rows:
        segment = next(found for found in batch.segments if found.seq == part.seq)
        for span in part.images:
            data = span.image.data
            assert isinstance(data, SeenImage)
            begin = span.start - span.first
            before = sum(count - taken for start, count, taken in cells.images[part.seq] if start < begin)
            at = segment.first + span.start - part.start
            inside = data.places[:, span.first : span.first + span.rows].to(places.device)
            places[:, at : at + span.rows] = inside + (begin - before)
    return replace(batch, places=places)
