"""Running the application until it is told to stop."""

from __future__ import annotations

import socket
from collections.abc import Callable

import uvicorn

from foretoken.errors import CapacityError
from foretoken.server.app import build_app
from foretoken.server.pool import ModelPool


class _Server(uvicorn.Server):
    """Loads the first model before it listens, and then says where."""

    def __init__(
        self, config: uvicorn.Config, pool: ModelPool, listening: Callable[[str, str], None]
    ) -> None:
        super().__init__(config)
        self._pool = pool
        self._listening = listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        served = await self._pool.get()
        await super().startup(sockets)
        for server in self.servers:
            for listener in server.sockets:
                host, port = listener.getsockname()[:2]
                address = f"[{host}]" if ":" in host else host
                self._listening(served.info.name, f"http://{address}:{port}/v1")


def run_server(pool: ModelPool, *, host: str, port: int, listening: Callable[[str, str], None]) -> None:
    """Serve until interrupted; `listening` hears of the first model's name and the URL. What is running then
    is finished first; a second interrupt ends it.

    Raises what loading the first model raises, CapacityError if the port is taken.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise CapacityError(
                f"Cannot listen on {host}:{port}: {error.strerror or error}.", hint="Choose another --port."
            ) from None
    config = uvicorn.Config(build_app(pool), host=host, port=port, log_level="warning", access_log=False)
    _Server(config, pool, listening).run()
