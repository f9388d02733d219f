"""The models a server has: each on a worker of its own, loaded when it is first asked for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass

from foretoken.engine.engine import Engine
from foretoken.errors import ModelNotFoundError
from foretoken.protocols import Tokenizer
from foretoken.server.telemetry import Telemetry
from foretoken.server.worker import EngineWorker, Job
from foretoken.types import Event, ModelInfo


@dataclass(frozen=True, slots=True)
class Served:
    """A loaded model under the name that clients use."""

    name: str
    worker: EngineWorker
    info: ModelInfo
    tokenizer: Tokenizer
    telemetry: Telemetry

    def stream(self, job: Job, caller: str) -> AsyncGenerator[Event, None]:
        """The events of a request of this caller (see `EngineWorker.stream`), counted and logged."""
        return self.telemetry.watch(self.name, caller, self.worker.stream(job))


class ModelPool:
    """Models by name. `loaders` make their engines; a request without a name gets `default`. What they do is
    counted by `telemetry`.
    """

    def __init__(
        self,
        loaders: Mapping[str, Callable[[], Engine]],
        default: str,
        telemetry: Telemetry | None = None,
    ) -> None:
        self.telemetry = telemetry or Telemetry()
        self._loaders = dict(loaders)
        self._default = default
        self._loaded: dict[str, Served] = {}
        self._locks = {name: asyncio.Lock() for name in loaders}
        self.created = int(time.time())

    @property
    def names(self) -> list[str]:
        """Every model that can be asked for."""
        return list(self._loaders)

    @property
    def loaded(self) -> Mapping[str, Served]:
        """Those in memory."""
        return dict(self._loaded)

    async def get(self, name: str | None = None) -> Served:
        """A model, loaded if need be. Raises ModelNotFoundError, and what loading raises."""
        name = name or self._default
        if name not in self._loaders:
            raise ModelNotFoundError(
                f"There is no model {name!r} here.", hint=f"Available: {', '.join(self._loaders)}."
            )
        async with self._locks[name]:
            if name not in self._loaded:
                worker = EngineWorker(self._loaders[name])
                await worker.start()
                model = await worker.call(lambda engine: engine.model)
                self._loaded[name] = Served(name, worker, model.info, model.tokenizer, self.telemetry)
            return self._loaded[name]

    async def close(self) -> None:
        """End all requests and free all models."""
        for served in list(self._loaded.values()):
            await served.worker.close()
        self._loaded.clear()
