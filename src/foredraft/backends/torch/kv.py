"""The KV cache: one static buffer for each layer, with a range of cells for each sequence.

Nothing is allocated per token. Removing tokens changes a length, forking copies a range, and keeping a path
of a tree moves its rows together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import Any

import torch

from foredraft.errors import BackendError, CapacityError, first_line

BLOCK = 192
"""Cells are padded to a multiple of this: attention processes them in blocks (attention.py). It is the
largest multiple of 64 up to which MKL (2024.2, AVX2) sums full and incomplete blocks in the same order.
"""

_HEADER = Struct("<q")


_VIEWS = 32
"""Maximum cached views of a layer's buffers. Every 192 tokens need other ones."""


@dataclass(frozen=True, slots=True)
class Layer:
    """The buffers of one layer: keys of shape (sequences, heads, cells, key size), values likewise."""

    keys: Any
    values: Any
    both: Any = None
    """The same memory as one tensor (2, sequences, heads, cells, size), if the sizes are equal."""
    views: dict[object, Any] = field(default_factory=dict)
    """Cached views for the layer's attention: creating them takes longer than a sum."""

    def view(self, key: object, make: Callable[[Layer], Any]) -> Any:
        """The result of `make` on the buffers, cached under `key`."""
        found = self.views.get(key)
        if found is None:
            if len(self.views) >= _VIEWS:
                self.views.clear()
            found = self.views[key] = make(self)
        return found


class KVCache:
    """`sequences` sequences of at most `context_length` tokens. Layers are created on first use, because the
    number and size of their heads depend on the model.
    """

    durable = True

    def __init__(self, sequences: int, context_length: int, *, dtype: Any, device: Any) -> None:
        self.context_length = context_length
        self.lengths = [0] * sequences
        self._cells = -(-context_length // BLOCK) * BLOCK
        self._dtype, self._device = dtype, device
        self._layers: dict[int, Layer] = {}

    def layer(self, index: int, heads: int, key_size: int, value_size: int) -> Layer:
        """The layer's buffers. Raises CapacityError if there is not enough memory.

        They are initially zero, and finite later: cells after a sequence's end are masked, and 0 × NaN would
        be NaN. A processor only allocates memory for zeros when they are overwritten.
        """
        found = self._layers.get(index)
        if found is None:
            shape = (len(self.lengths), heads, self._cells)
            try:
                if key_size == value_size:
                    both = self._zeros((2, *shape, key_size))
                    made = Layer(both[0], both[1], both)
                else:
                    made = Layer(self._zeros((*shape, key_size)), self._zeros((*shape, value_size)))
            except RuntimeError as error:  # torch.OutOfMemoryError is one; a processor's is not
                raise CapacityError(
                    f"There is not enough memory for a KV cache of {len(self.lengths)} × "
                    f"{self.context_length} tokens ({first_line(error)}).",
                    hint="Use a smaller context (--ctx).",
                ) from None
            found = self._layers[index] = made
        return found

    def _zeros(self, shape: tuple[int, ...]) -> Any:
        return torch.zeros(shape, dtype=self._dtype, device=self._device)

    def layer_bytes(self, heads: int, key_size: int, value_size: int) -> int:
        """The size of such a layer's buffers in bytes."""
        cells = len(self.lengths) * heads * self._cells
        return int(cells * (key_size + value_size) * self._dtype.itemsize)

    def extend(self, seq: int, rows: int) -> None:
        """A forward is over that computed `rows` rows of the sequence."""
        self.lengths[seq] += rows

    def truncate(self, seq: int, length: int) -> None:
        """Keep the first `length` cells. Raises BackendError if there are fewer."""
        if length > self.lengths[seq]:
            raise BackendError(
                f"Cannot truncate sequence {seq} to {length}: it holds {self.lengths[seq]} tokens."
            )
        self.lengths[seq] = length

    def keep_path(self, seq: int, start: int, path: Sequence[int]) -> None:
        """Of the rows from `start` on keep only `path` (indices into them), in that order."""
        if start + max(path, default=-1) >= self.lengths[seq]:
            raise BackendError(f"Sequence {seq} does not have the rows {list(path)} from {start} on.")
        if list(path) != list(range(len(path))):
            rows = torch.tensor([start + row for row in path], device=self._device)
            for layer in self._layers.values():
                for buffer in (layer.keys, layer.values):
                    buffer[seq, :, start : start + len(path)] = buffer[seq].index_select(1, rows)
        self.lengths[seq] = start + len(path)

    def fork(self, src: int, dst: int, length: int) -> None:
        """Replace `dst` by the first `length` cells of `src`. Raises BackendError if there are fewer."""
        if length > self.lengths[src]:
            raise BackendError(
                f"Cannot fork {length} tokens of sequence {src}: it holds {self.lengths[src]}."
            )
        if src != dst:
            for layer in self._layers.values():
                for buffer in (layer.keys, layer.values):
                    buffer[dst, :, :length] = buffer[src, :, :length]
        self.lengths[dst] = length

    def snapshot(self, seq: int) -> bytearray:
        """The sequence's length, then its cells layer by layer, keys before values."""
        length = self.lengths[seq]
        saved = bytearray(self._snapshot_size(length))
        _HEADER.pack_into(saved, 0, length)
        view = torch.frombuffer(saved, dtype=torch.uint8)
        at = _HEADER.size
        for cells in self._stretches(seq, length):
            raw = cells.contiguous().view(torch.uint8).flatten()
            view[at : at + len(raw)] = raw.cpu()
            at += len(raw)
        return saved

    def restore(self, seq: int, snapshot: bytearray | memoryview) -> None:
        """Restore a snapshot's cells into any sequence. Raises BackendError, leaving the sequence empty, if
        it does not belong to this model and context length.
        """
        self.lengths[seq] = 0
        (length,) = _HEADER.unpack_from(snapshot) if len(snapshot) >= _HEADER.size else (-1,)
        if not 0 <= length <= self.context_length or len(snapshot) != self._snapshot_size(length):
            raise BackendError("This is not a snapshot of this model, or it is incomplete.")
        view = torch.frombuffer(snapshot, dtype=torch.uint8)
        at = _HEADER.size
        for cells in self._stretches(seq, length):
            size = cells.numel() * cells.element_size()
            cells.copy_(view[at : at + size].clone().view(cells.dtype).view(cells.shape))
            at += size
        self.lengths[seq] = length

    def _stretches(self, seq: int, length: int) -> Iterator[Any]:
        """The first cells of a sequence in every buffer; empty if it has none."""
        for index in sorted(self._layers) if length else ():
            layer = self._layers[index]
            yield layer.keys[seq, :, :length]
            yield layer.values[seq, :, :length]

    def _snapshot_size(self, length: int) -> int:
        buffers = [buffer for layer in self._layers.values() for buffer in (layer.keys, layer.values)]
        cell = sum(buffer.shape[1] * buffer.shape[3] * buffer.element_size() for buffer in buffers)
        return _HEADER.size + length * int(cell)

    def release(self, seq: int) -> None:
        """Drop the sequence's cells."""
        self.lengths[seq] = 0

    def finite(self, seq: int) -> bool:
        """Whether the sequence's cells are numbers. A row that is not has none in the layers after that, so
        the last one is looked at.
        """
        if not self._layers or not self.lengths[seq]:
            return True
        layer = self._layers[max(self._layers)]
        held = [buffer[seq, :, : self.lengths[seq]] for buffer in (layer.keys, layer.values)]
        return all(bool(torch.isfinite(cells).all()) for cells in held)

    def wipe(self, seq: int) -> None:
        """Zero the cells that the sequence has dropped, which may not be finite. Those never written are not
        written now: they need no memory.
        """
        for layer in self._layers.values():
            for buffer in (layer.keys, layer.values):
                dropped = buffer[seq, :, self.lengths[seq] :]
                dropped[:, (dropped != 0).any(0).any(-1)] = 0

    def undo(self, seq: int) -> None:
        """A forward with rows of the sequence failed half way: overwrite what it wrote beyond the end."""
        self.wipe(seq)

    def close(self) -> None:
        """Free the buffers."""
        self._layers.clear()
