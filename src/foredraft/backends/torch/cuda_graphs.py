"""Repeated computations recorded as CUDA graphs."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch


class CudaRecorder:
    """A `Recorder` (fixed_sizes.py). All graphs share one memory pool: no two of them run at once, and the
    result of one is read before the next one runs.
    """

    def __init__(self) -> None:
        torch.cuda.synchronize()
        gc.collect()
        torch.cuda.empty_cache()  # cached memory must not be freed during a recording
        self._stream = torch.cuda.Stream()
        self._pool = torch.cuda.graph_pool_handle()
        self._graphs: list[Any] = []

    def record(self, compute: Callable[[], Any]) -> Callable[[], Any]:
        """See `Recorder`. Kernels are compiled and libraries initialised before the recording."""
        stream, graph = self._stream, torch.cuda.CUDAGraph()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            compute()
            stream.synchronize()
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                made = compute()
            except BaseException:
                with suppress(RuntimeError):  # the first error invalidated the recording
                    graph.capture_end()
                raise
            graph.capture_end()
        torch.cuda.current_stream().wait_stream(stream)
        self._graphs.append(graph)

        def replay() -> Any:
            graph.replay()
            return made

        return replay

    def close(self) -> None:
        """Free the graphs."""
        for graph in self._graphs:
            graph.reset()
        self._graphs.clear()
