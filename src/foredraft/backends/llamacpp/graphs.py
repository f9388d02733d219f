"""The compute graphs of a llama.cpp context, one for each shape of a forward (`native/graphs.cpp`).

llama.cpp keeps only the graph of the last forward. A draft has another number of rows than the round before,
so without this every draft, and every round after one, would wait for a graph to be built.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cache
from typing import Any

from foredraft.backends.llamacpp import binding, kernels

logger = logging.getLogger(__name__)

MOST_GRAPHS = 16
"""Graphs kept for each sequence: one for each number of rows, if all of them are used in turns. Each takes a
megabyte or two, and the compute buffers of its rows.
"""

MOST_IN_ALL = 32
"""Maximum graphs in total. Each takes 2.7 MB with a model of 30 layers; with twice as many, four busy
sequences found a graph in only 1 % more forwards (decision 0007).
"""

MOST_ROWS = 16
"""Maximum rows of a forward whose graph is kept. Larger forwards take so long that building a graph makes no
difference, and their buffers are large.
"""


@dataclass(frozen=True, slots=True)
class _Native:
    """The native functions, with the names in `native/graphs.cpp`."""

    refused: Any
    new: Any
    swap: Any
    free: Any


@cache
def _native() -> _Native | None:
    """The native functions; None if there are none, or they do not fit this llama.cpp."""
    found = kernels.in_use()
    if found is None:
        return None
    library = found.native.handle
    if missing := library.foredraft_graphs_attach(binding.library().handle._handle):
        logger.warning("No graphs are kept: this llama.cpp lacks %s.", missing.decode())
        return None
    return _Native(
        library.foredraft_graphs_refused,
        library.foredraft_graph_new,
        library.foredraft_graph_swap,
        library.foredraft_graph_free,
    )


def are_kept() -> bool:
    """Whether this process can keep graphs. `kernels.attach` must have been called."""
    return _native() is not None


def describe() -> str:
    """What is done, for reports; empty if no graphs are kept."""
    return "a graph for each number of rows" if are_kept() else ""


class Graphs:
    """The graphs of a context with this number of sequences, beside its own. Call `use` before every forward,
    and `close` before the context is freed.

    llama.cpp decides whether a graph fits a forward: one that does not is rebuilt.
    """

    def __init__(self, context: Any, sequences: int = 1) -> None:
        self._context = context
        self._most = min(sequences * MOST_GRAPHS, MOST_IN_ALL)
        self._native = _native()
        if self._native is not None and (reason := self._native.refused(context)):
            logger.warning("No graphs are kept: %s.", reason.decode())
            self._native = None
        self._kept: OrderedDict[Hashable, int] = OrderedDict()
        self._used: int | None = None
        """The shape in whose slot the context's own graph is; None: it is in the context."""

    def use(self, shape: Hashable, rows: int) -> None:
        """Select the graph for the next forward, with this shape and number of rows."""
        graph = self._graph(shape) if rows <= MOST_ROWS else None
        if graph == self._used or self._native is None:
            return
        for other in (self._used, graph):
            if other is not None:
                self._native.swap(self._context, other)
        self._used = graph

    def _graph(self, shape: Hashable) -> int | None:
        """The slot for a shape's graph: its own, a new one, or that of the least recently used shape."""
        if self._native is None:
            return None
        graph = self._kept.get(shape)
        if graph is None and len(self._kept) < self._most:
            graph = self._native.new(self._context)
        if graph is None and self._kept:
            _, graph = self._kept.popitem(last=False)
        if graph is None:  # a GPU is used
            self._native = None
            return None
        self._kept[shape] = graph
        self._kept.move_to_end(shape)
        return graph

    def close(self) -> None:
        """Free all graphs except the context's own; others are made when they are needed again."""
        if self._native is not None:
            self.use(None, MOST_ROWS + 1)
            for graph in self._kept.values():
                self._native.free(graph)
        self._kept.clear()
