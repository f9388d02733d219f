"""Layers in the order they are computed; the ones that do not stay on the device arrive in two buffers.

While one layer is computed the next one that is streamed is copied. A buffer is written to again only after
the layer in it was computed. After the last streamed layer the first ones are fetched for the next forward,
which sampling and drafting then overlap with.

The order of things is here; how bytes travel is a `Copier`'s: CUDA streams and events (offload_cuda.py), or
a thread (offload_cpu.py).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

LayerT = TypeVar("LayerT")
"""What computes a layer."""


class Copier(Protocol):
    """Copies layers into `buffers`, tensors of bytes on the device, beside what is computed there.

    Nothing waits on the caller's side where the device can: `start` and `computed` only say in which order
    the device does things.
    """

    buffers: list[Any]

    def start(self, slot: int, source: Any) -> None:
        """Copy the bytes `source` into a buffer, once everything that was `computed` from it is."""
        ...

    def wait(self, slot: int) -> None:
        """What is computed from now on comes after the last copy into this buffer."""
        ...

    def computed(self, slot: int) -> None:
        """All that reads what is in this buffer was given to the device."""
        ...

    def settle(self) -> None:
        """Return when nothing is copied or computed any more."""
        ...

    def close(self) -> None:
        """Settle, and free the buffers."""
        ...


@dataclass(frozen=True, slots=True)
class Streamed(Generic[LayerT]):
    """A layer whose weights are the bytes `source` in CPU memory. `views`: the layer as it is in each buffer
    when it has been copied there.
    """

    source: Any
    views: tuple[LayerT, ...]


class Layers(Generic[LayerT]):
    """Iterating yields every layer when it may be computed, and takes it as computed when the next is asked
    for. An iteration that ends early has to be closed.
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
        except BaseException:  # also GeneratorExit: what computes the layers has failed
            self._holds = [None] * len(self._holds)
            if self._copier is not None:
                self._copier.settle()
            raise

    def _begin(self) -> None:
        """See that the first layers are on their way. After a whole forward they are."""
        first = range(len(self._holds))
        if set(self._holds) != set(first):
            for slot in first:
                self._fetch(slot, slot)

    def _fetch(self, turn: int, slot: int) -> None:
        if self._holds[slot] == turn:  # no more layers than buffers: they stay where they are
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
