"""The models a server has: each on a worker of its own, loaded when it is first asked for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from foretoken.engine.engine import Engine
from foretoken.errors import ModelNotFoundError
from foretoken.protocols import Tokenizer
from foretoken.server.worker import EngineWorker
from foretoken.types import ModelInfo


@dataclass(frozen=True, slots=True)
class Served:
    """A loaded model under the name that clients use."""

    name: str
    worker: EngineWorker
    info: ModelInfo
    tokenizer: Tokenizer


class ModelPool:
    """Models by name. `loaders` make their engines; a request without a name gets `default`."""

    def __init__(self, loaders: Mapping[str, Callable[[], Engine]], default: str) -> None:
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
                self._loaded[name] = Served(name, worker, model.info, model.tokenizer)
            return self._loaded[name]

    async def close(self) -> None:
        """End all requests and free all models."""
        for served in list(self._loaded.values()):
            await served.worker.close()
        self._loaded.clear()
