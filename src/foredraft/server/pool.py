"""The server's models: each on its own worker, loaded on first use.

With a memory budget, the least recently used model is unloaded to make room. A model that is answering
requests is never unloaded for another.

A user of a model holds it: while `Served.hold` is entered it is not unloaded for another model, and work in
`Served.prepare` ends before it is freed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from foredraft.engine.engine import Engine
from foredraft.engine.loading import thaw_heap
from foredraft.errors import CapacityError, ForedraftError, ModelNotFoundError
from foredraft.protocols import Model, Tokenizer
from foredraft.sampling.constraint import get_ready
from foredraft.server.metrics import Metrics
from foredraft.server.settings import Limits, ModelSettings, ServerSettings
from foredraft.server.tools.detect import describe_tools
from foredraft.server.worker import EngineWorker, Job
from foredraft.types import Event, ModelInfo

Result = TypeVar("Result")
logger = logging.getLogger(__name__)

Load = Callable[[ModelSettings], Engine]
Measure = Callable[[ModelSettings], int]
"""Estimates a model's memory use in bytes before it is loaded."""

PREPARING = 4
"""Threads that prepare requests, for all models together: they share the processor with the forwards."""


@dataclass(slots=True)
class Served:
    """A loaded model under the name that clients use."""

    name: str
    worker: EngineWorker
    info: ModelInfo
    tokenizer: Tokenizer
    settings: ModelSettings
    metrics: Metrics
    limits: Limits
    threads: ThreadPoolExecutor
    holders: int = 0
    last_used: float = field(default_factory=time.monotonic)
    _preparing: set[Future[Any]] = field(default_factory=set)

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
        future = self.threads.submit(work)
        self._preparing.add(future)
        future.add_done_callback(self._preparing.discard)
        return await asyncio.wrap_future(future)

    async def stream(self, job: Job) -> AsyncGenerator[Sequence[Event], None]:
        """The events of a request (see `EngineWorker.stream`), counted and logged."""
        with self.hold():
            async with aclosing(self.metrics.watch(self.name, self.worker.stream(job))) as answer:
                async for events in answer:
                    yield events

    async def close(self) -> None:
        """End the model's requests and free it. Pending preparations end first."""
        if self._preparing:
            await asyncio.to_thread(wait, list(self._preparing))
        await self.worker.close()


class ModelPool:
    """The models of `settings`, whose engines are created by `load`. `metrics` counts what they do.

    `measure` estimates a model's size before it is loaded; without it the budget may be exceeded while a
    model loads.
    """

    def __init__(
        self,
        settings: ServerSettings,
        load: Load,
        metrics: Metrics | None = None,
        measure: Measure = lambda _: 0,
    ) -> None:
        self.settings = settings
        self.metrics = metrics or Metrics()
        self._load = load
        self._measure = measure
        self._threads = ThreadPoolExecutor(PREPARING, "foredraft-prepare")
        self._loaded: dict[str, Served] = {}
        self._changing = asyncio.Lock()
        self.created = int(time.time())
        self.on_request: Callable[[], None] = lambda: None
        """Called whenever a model is asked for."""

    @property
    def names(self) -> list[str]:
        """The names of all models."""
        return list(self.settings.models)

    @property
    def loaded(self) -> Mapping[str, Served]:
        """The models in memory."""
        return dict(self._loaded)

    def resolve(self, name: str | None) -> str:
        """The model with this name or alias, or the default for None. Raises ModelNotFoundError."""
        found = self.settings.find_model(name)
        if found is None:
            raise ModelNotFoundError(
                f"There is no model {name!r}.", hint=f"Available: {', '.join(self.names) or 'none'}."
            )
        return found

    async def get(self, name: str | None = None) -> Served:
        """The model with this name, loaded if needed. Raises ModelNotFoundError, CapacityError, and what
        loading raises.
        """
        self.on_request()
        found = self.settings.answering(name) or self.resolve(name)
        if not self._usable(found):
            async with self._changing:
                if not self._usable(found):
                    self._loaded.pop(found, None)
                    self._loaded[found] = await self._start(found)
        served = self._loaded[found]
        served.last_used = time.monotonic()
        return served

    def _usable(self, name: str) -> bool:
        """Whether a model is loaded and its engine has not failed since."""
        return name in self._loaded and self._loaded[name].worker.alive

    async def _start(self, name: str) -> Served:
        settings = self.settings.models[name]
        await self._make_room(await asyncio.to_thread(self._measure, settings))
        worker = EngineWorker(lambda: self._load(settings))
        await worker.start()
        try:
            model = await worker.call(self._set_up)
            await self._make_room(model.info.size_bytes)
            await asyncio.wrap_future(self._threads.submit(get_ready, model.tokenizer))
            await asyncio.wrap_future(self._threads.submit(check_template, name, model.tokenizer))
        except BaseException:
            await worker.close()
            raise
        limits = self.settings.limits
        threads = self._threads
        return Served(name, worker, model.info, model.tokenizer, settings, self.metrics, limits, threads)

    def _set_up(self, engine: Engine) -> Model:
        engine.max_waiting = self.settings.limits.max_waiting
        return engine.model

    async def _make_room(self, size: int) -> None:
        """Unload the least recently used models until one of `size` bytes fits the budget."""
        budget = self.settings.memory_budget_bytes
        if budget is None:
            return
        used = sum(served.info.size_bytes for served in self._loaded.values())
        leaving: list[Served] = []
        for served in sorted(self._loaded.values(), key=lambda served: served.last_used):
            if used + size <= budget:
                break
            if not served.settings.pinned and not served.holders:
                leaving.append(served)
                used -= served.info.size_bytes
        if used + size > budget:  # fails before anything is unloaded in vain
            raise _no_room()
        for served in leaving:
            if served.holders:  # taken meanwhile
                raise _no_room()
            await self._stop(served)

    async def _stop(self, served: Served) -> None:
        del self._loaded[served.name]
        logger.info("Unloading %s", served.name)
        await served.close()
        thaw_heap()
        self.metrics.unloaded(served.name)

    @property
    def busy(self) -> bool:
        """Whether a model is in use."""
        return any(served.holders for served in self._loaded.values())

    async def unload(self, name: str) -> bool:
        """Free a model; its running requests end with an error. Returns whether it was loaded."""
        found = self.resolve(name)
        async with self._changing:
            served = self._loaded.get(found)
            if served is not None:
                await self._stop(served)
        return served is not None

    async def sweep(self) -> None:
        """Unload models that have been idle for too long, and those whose settings have changed."""
        async with self._changing:
            for served in list(self._loaded.values()):
                if not served.holders and (self._forgotten(served) or self._outdated(served)):
                    await self._stop(served)

    def _forgotten(self, served: Served) -> bool:
        timeout = self.settings.idle_timeout_s
        if timeout is None or served.settings.pinned:
            return False
        return time.monotonic() - served.last_used > timeout

    def use(self, settings: ServerSettings) -> None:
        """Apply new settings from the next request on. A model that has to be reloaded for them is unloaded
        by the next `sweep` that finds it idle, and answers with its old settings until then.
        """
        self.settings = settings
        for name, served in self._loaded.items():
            served.limits = settings.limits
            model = settings.models.get(name)
            if model is not None and model.loads_like(served.settings):
                served.settings = model

    def _outdated(self, served: Served) -> bool:
        return self.settings.models.get(served.name) is not served.settings

    async def close(self) -> None:
        """End all requests and free all models."""
        async with self._changing:
            for served in list(self._loaded.values()):
                await self._stop(served)
        self._threads.shutdown(wait=False, cancel_futures=True)


def check_template(name: str, tokenizer: Tokenizer) -> None:
    """Determine the abilities of a model's chat template, and log a warning if it is unusable, or writes tool
    calls in an unknown form.
    """
    known, note = True, ""
    try:
        traits = tokenizer.template_traits
        error = traits.error
        known, note = describe_tools(tokenizer.chat_template or "", traits.variables)
    except ForedraftError as failed:  # an error of the child process, not of the template: requests report it
        error = failed.message
    if not known:
        logger.warning("Tools of %s: %s", name, note)
    if error is not None:
        logger.warning(
            "The chat template of %s cannot be used, so the model only accepts prompts without messages. %s",
            name,
            error,
        )


def _no_room() -> CapacityError:
    return CapacityError(
        "Not enough memory for this model beside those in use.", hint="Try again later, or unload a model."
    )
