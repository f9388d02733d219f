"""What the models in memory have in common, whether they generate or embed."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from foredraft.embedding import ModelKind, TextTokenizer
from foredraft.errors import CapacityError
from foredraft.server.begun import results_of
from foredraft.server.metrics import Metrics
from foredraft.server.settings import Limits, ModelSettings
from foredraft.types import ModelInfo

Result = TypeVar("Result")


class Worker(Protocol):
    """The thread of a model."""

    @property
    def alive(self) -> bool:
        """Whether it accepts requests."""
        ...

    async def close(self) -> None:
        """End the requests, and free the model."""
        ...


@dataclass(slots=True, kw_only=True)
class Held:
    """A loaded model under the name that clients use."""

    name: str
    worker: Worker
    tokenizer: TextTokenizer
    info: ModelInfo
    settings: ModelSettings
    metrics: Metrics
    limits: Limits
    threads: ThreadPoolExecutor
    holders: int = 0
    draining: bool = False
    """Whether no request is taken until it is loaded again for its settings: a request waits for an adapter
    that only they have.
    """
    last_used: float = field(default_factory=time.monotonic)
    _preparing: set[Future[Any]] = field(default_factory=set)
    _closing: threading.Event = field(default_factory=threading.Event)

    @property
    def kind(self) -> ModelKind:
        """What it is for."""
        raise NotImplementedError

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Keep the model from being unloaded for another, or for being idle."""
        self.holders += 1
        try:
            yield
        finally:
            self.holders -= 1
            self.last_used = time.monotonic()

    async def prepare(self, work: Callable[[], Result]) -> Result:
        """Run `work`, which uses the tokenizer, on another thread, because long texts take time. Raises what
        it raises.
        """
        return await self._on(self.threads, work)

    async def _on(self, threads: Executor, work: Callable[[], Result]) -> Result:
        """The same on other threads. Raises CapacityError, too, if the model is freed before it begins."""

        def unless_closing() -> Result:
            if self._closing.is_set():
                raise CapacityError("The model was unloaded.", hint="Send the request again.")
            return work()

        future = threads.submit(unless_closing)
        self._preparing.add(future)
        future.add_done_callback(self._preparing.discard)
        [result] = await results_of([future])
        return result

    async def close(self) -> None:
        """End the model's requests and free it. Preparations that have begun end first; the others fail."""
        self._closing.set()
        if self._preparing:
            await asyncio.to_thread(wait, list(self._preparing))
        await self.worker.close()
