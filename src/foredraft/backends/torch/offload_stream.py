"""Layers in order of computation; those that do not stay on the device are copied into two buffers.

While one layer is computed the next streamed one is copied. A buffer is only overwritten after its layer was
computed. After the last streamed layer the first ones are copied for the next forward, which overlaps with
sampling and drafting.

This module determines the order; the copying is done by a `Copier`: CUDA streams and events
(offload_cuda.py), or a thread (offload_cpu.py).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

LayerT = TypeVar("LayerT")
"""Type of a layer that is ready for computation."""


class Copier(Protocol):
    """Copies layers into `buffers`, tensors of bytes on the device, during computation.

    The caller does not wait if the device supports it: `start` and `computed` only define the order of
    operations on the device.
    """

    buffers: list[Any]

    def start(self, slot: int, source: Any) -> None:
        """Copy the bytes `source` into a buffer, after all computations up to the last `computed` for it."""
        ...

    def wait(self, slot: int) -> None:
        """Make further computations wait for the last copy into this buffer."""
        ...

    def computed(self, slot: int) -> None:
        """Record that all computations that read this buffer have been submitted."""
        ...

    def settle(self) -> None:
        """Wait for all copies and computations."""
        ...

    def close(self) -> None:
        """Settle, and free the buffers."""
        ...


@dataclass(frozen=True, slots=True)
class Streamed(Generic[LayerT]):
    """A layer whose weights are the bytes `source` in CPU memory. `views`: the layer as tensors in each
    buffer.
    """

    source: Any
    views: tuple[LayerT, ...]


class Layers(Generic[LayerT]):
    """Iterates over the layers, each when it may be computed; requesting the next one means that it was
    computed. An iteration that ends early must be closed.
    """

    def __init__(self, layers: Sequence[LayerT | Streamed[LayerT]], copier: Copier | None = None) -> None:
        self._layers = list(layers)
        self._streamed: list[Streamed[LayerT]] = [
            layer for layer in self._layers if isinstance(layer, Streamed)
        ]
        self._copier = copier
        self._holds: list[int | None] = [None] * (len(copier.buffers) if copier else 0)

    def __len__(self) -> int:
        return len(self._layers)

    def __iter__(self) -> Generator[LayerT, None, None]:
        turn = 0
        try:
            self._begin()
            for layer in self._layers:
                if not isinstance(layer, Streamed):
                    yield layer
                    continue
                assert self._copier is not None, "layers that are streamed come with a copier"
                slot = self._holds.index(turn)
                self._copier.wait(slot)
                yield layer.views[slot]
                self._copier.computed(slot)
                self._fetch((turn + len(self._holds)) % len(self._streamed), slot)
                turn += 1
        except BaseException:  # also GeneratorExit: computing a layer failed
            self._holds = [None] * len(self._holds)
            if self._copier is not None:
                self._copier.settle()
            raise

    def _begin(self) -> None:
        """Start copying the first layers, unless the last forward has already done so."""
        first = range(len(self._holds))
        if set(self._holds) != set(first):
            for slot in first:
                self._fetch(slot, slot)

    def _fetch(self, turn: int, slot: int) -> None:
        if self._holds[slot] == turn:  # no more layers than buffers: they stay in place
            return
        assert self._copier is not None, "without a copier there are no buffers"
        self._copier.start(slot, self._streamed[turn].source)
        self._holds[slot] = turn

    def close(self) -> None:
        """Free the weights."""
        if self._copier is not None:
            self._copier.close()
            self._copier = None
        self._layers.clear()
        self._streamed.clear()
