"""`foredraft rpc-server`: a socket that listens, and processes that wait on it, for a client each."""

from __future__ import annotations

import os
import selectors
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from foredraft.backends.llamacpp.rpc.child import READY
from foredraft.config import RPC_PORT
from foredraft.errors import BackendError, ConfigError

SPARE = 2
"""Processes that wait for a client: one is greeted and one connects at the same time."""

_CHILD = "foredraft.backends.llamacpp.rpc.child"
_FAILURES = 3
"""After this number of processes in a row that ended before they were ready, the server gives up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """How to serve. `cache`: the folder that keeps weights which clients sent, None for none; `own_cache`: as
    `ModelOptions.cache_dir`.
    """

    host: str = "127.0.0.1"
    port: int = RPC_PORT
    threads: int = 1
    cache: Path | None = None
    own_cache: Path | None = None
    llama_library: Path | None = None


class RPCServer:
    """Listens when it is made; `run` serves until it is interrupted. `tell` is called with a line for each
    client that comes and goes.
    """

    def __init__(self, serving: Serving, tell: Callable[[str], None]) -> None:
        """Raises BackendError, ConfigError where the address cannot be listened on, or the cache folder
        cannot be made.
        """
        self._serving, self._tell = serving, tell
        if serving.cache is not None:
            _clear(serving.cache)
        self._listens = _listening(serving.host, serving.port)
        address, port = self._listens.getsockname()
        self.port = int(port)
        self.on_loopback = str(address).startswith("127.")
        """Whether only programs of this machine can connect."""
        self._selector = selectors.DefaultSelector()
        self._children: dict[subprocess.Popen[bytes], str] = {}
        """The processes, each with its client's address; empty while it waits."""
        self._failed = 0

    def run(self) -> None:
        """Raises BackendError if its processes fail; KeyboardInterrupt passes through."""
        while True:
            while sum(not client for client in self._children.values()) < SPARE:
                self._start()
            for key, _ in self._selector.select(1.0):
                self._hear(key.data, key.fd)

    def close(self) -> None:
        """End all processes."""
        for child in list(self._children):
            child.kill()
        for child in list(self._children):
            child.wait()
        self._children.clear()
        self._selector.close()
        self._listens.close()

    def _start(self) -> None:
        serving = self._serving
        reads, writes = os.pipe()
        texts = [serving.threads, serving.cache or "", serving.own_cache or "", serving.llama_library or ""]
        child = subprocess.Popen(  # noqa: S603 - this interpreter
            [sys.executable, "-m", _CHILD, str(self._listens.fileno()), str(writes), *map(str, texts)],
            stdin=subprocess.PIPE,
            pass_fds=(self._listens.fileno(), writes),
            start_new_session=True,  # Ctrl-C is for the server
        )
        os.close(writes)
        self._children[child] = ""
        self._selector.register(reads, selectors.EVENT_READ, child)

    def _hear(self, child: subprocess.Popen[bytes], pipe: int) -> None:
        """A process is ready, has a client, or ended."""
        if said := os.read(pipe, 64):
            self._failed = 0
            if client := said.decode("ascii", "replace").removeprefix(READY.decode()).strip():
                self._children[child] = client
                self._tell(f"{client} is connected")
            return
        self._selector.unregister(pipe)
        os.close(pipe)
        client = self._children.pop(child)
        with suppress(OSError):
            if child.stdin:
                child.stdin.close()
        code = child.wait()
        if client:
            self._tell(f"{client} is gone" + (f" (its process failed with code {code})" if code else ""))
            return
        self._failed += 1
        if self._failed >= _FAILURES:
            raise BackendError(
                f"The processes that serve clients fail with code {code}.", hint="See what they said above."
            )


def _clear(cache: Path) -> None:
    """Make the folder, and remove what a process that was killed had not finished writing (`kept.h`). One
    that writes now does without. Raises ConfigError.
    """
    try:
        cache.mkdir(parents=True, exist_ok=True, mode=0o700)
        for file in cache.glob(f"{'[0-9a-f]' * 16}.*"):
            file.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(
            f"Weights cannot be kept in {cache}: {error.strerror}.",
            hint="Leave --cache out, or make room there.",
        ) from None


def _listening(host: str, port: int) -> socket.socket:
    try:
        address = socket.gethostbyname(host)
    except OSError:
        raise ConfigError(f"There is no address {host} here.", hint="Name one of this machine's.") from None
    listens = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listens.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listens.bind((address, port))
        listens.listen(16)
    except OSError as error:
        listens.close()
        raise BackendError(
            f"Cannot listen on {host}:{port}: {error.strerror}.",
            hint="Another program may use the port: choose one with --port.",
        ) from None
    return listens
