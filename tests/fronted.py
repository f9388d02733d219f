"""A front on a port of this machine with replicas in the same process, around models without weights."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace

import uvicorn

from foredraft import Engine
from foredraft.scale.front import lost
from foredraft.scale.front_app import front_app
from foredraft.scale.message import Forwarded, Parts
from foredraft.scale.replica import Replica, only
from foredraft.server.connection import Connection
from foredraft.server.pool import ModelPool
from foredraft.server.settings import ModelSettings, ServerSettings
from foredraft.server.taking import Reload
from foredraft.server.telemetry import Telemetry
from foredraft.testing import FakeModel
from http_server import writing_model


@dataclass(slots=True)
class Near:
    """Replicas of a model in this process, which take turns (`front.Replicas`). `asked`: how often one was.
    `cut`: after how many parts the reply of each of the next requests is lost; None is the whole reply.
    `late_s`: seconds until one accepts a request.
    """

    made: list[Replica]
    engines: list[Engine]
    asked: list[Forwarded] = field(default_factory=list)
    cut: list[int | None] = field(default_factory=list)
    late_s: float = 0.0

    async def ask(self, asked: Forwarded) -> AsyncGenerator[Parts, None]:
        replica = self.made[len(self.asked) % len(self.made)]
        self.asked.append(asked)
        await asyncio.sleep(self.late_s)
        most = self.cut.pop(0) if self.cut else None
        if most == 0:
            raise lost()
        came = 0
        async with aclosing(replica.answer(asked)) as reply:
            async for parts in reply:
                yield parts
                came += 1
                if came == most:
                    raise lost()

    async def read(self, path: str) -> Mapping[str, bytes]:
        return {f"replica-{number}": await made.read(path) for number, made in enumerate(self.made)}

    @property
    def running(self) -> int:
        """Requests in all engines."""
        return sum(engine.running_count + engine.waiting_count for engine in self.engines)


@dataclass(slots=True)
class Fronted:
    """A front that runs: its address, and the replicas of each model."""

    url: str
    replicas: dict[str, Near]


@contextmanager
def fronted(
    *names: str,
    count: int = 2,
    settings: ServerSettings | None = None,
    model: Callable[[], FakeModel] = writing_model,
    allow_public: bool = False,
    reload: Reload = lambda: None,
    telemetry: Telemetry | None = None,
) -> Iterator[Fronted]:
    """A front with `count` replicas of a model for each name ("fake" if none), stopped at the end. `reload`,
    `telemetry` as in `front_app`; new settings need the models of these names.
    """
    models = {name: ModelSettings(path=name) for name in names or ("fake",)}
    whole = replace(settings or ServerSettings(), models=models)
    ready, stop = threading.Event(), threading.Event()
    running = Fronted("", {})

    async def serve() -> None:
        for name in models:
            running.replicas[name] = await _near(only(whole, name), count, model)
        app = front_app(
            whole, running.replicas, allow_public=allow_public, reload=reload, telemetry=telemetry
        )
        config = uvicorn.Config(app, port=0, http=Connection, ws="none", log_config=None, access_log=False)
        server = uvicorn.Server(config)
        task = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        host, port = server.servers[0].sockets[0].getsockname()[:2]
        running.url = f"http://{host}:{port}"
        ready.set()
        await asyncio.to_thread(stop.wait)
        server.should_exit = True
        await task
        for near in running.replicas.values():
            for replica in near.made:
                await replica.close()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(60), "the front did not start"
        yield running
    finally:
        stop.set()
        thread.join(60)


async def _near(settings: ServerSettings, count: int, model: Callable[[], FakeModel]) -> Near:
    near = Near([], [])

    def load(_: ModelSettings) -> Engine:
        engine = Engine(model())
        near.engines.append(engine)
        return engine

    for _ in range(count):
        replica = Replica(ModelPool(settings, load))
        await replica.start()
        near.made.append(replica)
    return near
