"""The graphs of a llama.cpp context, one for each shape of a forward (`native/graphs.h`).

llama.cpp keeps one, that of the last forward. A draft has another number of rows than the round before it, so
without these every draft, and every round after one, waits for a graph to be built.
"""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cache
from typing import Any

import llama_cpp.llama_cpp as lib

MOST_GRAPHS = 16
"""Kept for each sequence: one for each number of rows, for whoever measures all of them in turns. Each takes
a megabyte or two and room for what its rows compute."""

MOST_IN_ALL = 32
"""However many sequences there are. Each takes 2.7 MB with a model of 30 layers; with twice as many as these
four busy sequences found one in a hundred forwards more ready (decision 0007)."""

MOST_ROWS = 16
"""Rows of a forward whose graph is kept. Those of more take long enough for building one to make no
difference, and their room is large.
"""


@dataclass(frozen=True, slots=True)
class _Native:
    """llama.cpp's part, by the names in `native/graphs.h`."""

    new: Any
    swap: Any
    free: Any


@cache
def _native() -> _Native | None:
    """None where llama.cpp was built without it."""
    library, pointer = lib._lib, ctypes.c_void_p
    try:
        native = _Native(
            library.foredraft_graph_new, library.foredraft_graph_swap, library.foredraft_graph_free
        )
    except AttributeError:
        return None
    native.new.restype, native.new.argtypes = pointer, (pointer,)
    native.swap.restype, native.swap.argtypes = None, (pointer, pointer)
    native.free.restype, native.free.argtypes = None, (pointer,)
    return native


def built_in() -> bool:
    """Whether llama.cpp was built so that graphs can be kept."""
    return _native() is not None


def describe() -> str:
    """What is built in, in words; empty if nothing is."""
    return "a graph for each number of rows" if built_in() else ""


class Graphs:
    """The graphs of a context with so many sequences, beside its own. `use` before every forward; `close`
    before the context is freed.

    Which graph fits a forward is llama.cpp's to decide: one that does not is built anew in its place.
    """

    def __init__(self, context: Any, sequences: int = 1) -> None:
        self._context = context
        self._most = min(sequences * MOST_GRAPHS, MOST_IN_ALL)
        self._native = _native()
        self._kept: OrderedDict[Hashable, int] = OrderedDict()
        self._used: int | None = None
        """Whose place the context's own graph is in; None: in the context."""

    def use(self, shape: Hashable, rows: int) -> None:
        """The next forward has so many rows, and this shape."""
        graph = self._graph(shape) if rows <= MOST_ROWS else None
        if graph == self._used or self._native is None:
            return
        for other in (self._used, graph):
            if other is not None:
                self._native.swap(self._context, other)
        self._used = graph

    def _graph(self, shape: Hashable) -> int | None:
        """The place for the graph of a shape: its own, a new one, or that of the shape used longest ago."""
        if self._native is None:
            return None
        graph = self._kept.get(shape)
        if graph is None and len(self._kept) < self._most:
            graph = self._native.new(self._context)
        if graph is None and self._kept:
            _, graph = self._kept.popitem(last=False)
        if graph is None:  # a GPU takes part
            self._native = None
            return None
        self._kept[shape] = graph
        self._kept.move_to_end(shape)
        return graph

    def close(self) -> None:
        """Free all but the context's own."""
        if self._native is not None:
            self.use(None, MOST_ROWS + 1)
            for graph in self._kept.values():
                self._native.free(graph)
        self._kept.clear()
