"""The RPC backend in this process: a library that `foredraft rpc-build` compiles (`native/rpc`).

A host that is lost does not end the process: what it should have computed is missing, and `check` says so.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from foredraft.backends.llamacpp import binding, log
from foredraft.backends.llamacpp.binding import lib
from foredraft.backends.llamacpp.devices import CPU, gpu_pointers
from foredraft.backends.llamacpp.native import build, rpc_build
from foredraft.backends.llamacpp.rpc.hosts import Host, greet
from foredraft.errors import BackendError, HostLostError

BUILD_COMMAND = "foredraft rpc-build"

_LONGEST_NAME = 512
"""Bytes of a connection's name: longer than the name of a host in DNS."""


@dataclass(frozen=True, slots=True)
class RemoteDevice:
    """A device of a host: ggml's pointer, the name of its buffers (`devices.placed`), and that of the
    connection to its host.
    """

    pointer: int
    buffers: str
    connection: str
    host: Host

    def memory(self) -> tuple[int, int]:
        """(free, all) bytes."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        lib.ggml_backend_dev_memory(self.pointer, ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value


class Hosts:
    """The hosts of a model, connected; none by default."""

    def __init__(self, devices: Sequence[RemoteDevice] = (), lost: Any = None) -> None:
        self.devices = tuple(devices)
        self._connections = {device.connection: device.host.endpoint for device in devices}
        self._lost = lost

    def kind_of(self, placed: str) -> str:
        """`devices.CPU` if everything that is `placed` so (`devices.placed`) is computed by processors."""
        processors = {device.buffers for device in self.devices if device.host.on_processors}
        return CPU if set(placed.split(" + ")) <= processors else placed

    def with_gpus(self) -> Any:
        """Their devices and this machine's GPUs, as llama.cpp takes a list; None for all of its own."""
        if not self.devices:
            return None
        pointers = [*(device.pointer for device in self.devices), *gpu_pointers(), None]
        return (ctypes.c_void_p * len(pointers))(*pointers)

    def check(self) -> None:
        """Raises BackendError if one was lost: what was computed since then is worth nothing."""
        if self._lost is None:
            return
        for connection, endpoint in self._connections.items():
            if reason := self._lost(connection.encode()):
                raise _lost(endpoint, reason)


def _lost(endpoint: str, reason: bytes) -> HostLostError:
    return HostLostError(
        f"The RPC host {endpoint} was lost: {reason.decode('utf-8', 'replace')}.",
        hint="Start foredraft rpc-server there again. A server and a chat load the model again for the next "
        "request; elsewhere load it again.",
    )


NO_HOSTS = Hosts()


@dataclass(frozen=True, slots=True)
class _Library:
    """Functions of the native library; see `native/rpc/rpc.cpp`."""

    version: tuple[int, int]
    connect: Any
    lost: Any
    patience: Any
    serve: Any


@cache
def library(cache_dir: Path | None, package: Path = build.FOLDER) -> _Library:
    """The library, loaded into this process beside llama.cpp; it is in this folder of the package, or in the
    cache folder. Raises BackendError, MissingDependencyError.
    """
    log.install()
    path = rpc_build.find(cache_dir, package)
    if path is None:  # an outdated one is not loaded: it may need what this llama.cpp does not have
        old = any(place.exists() for place in rpc_build.places(cache_dir, package))
        raise BackendError(
            "llama.cpp's RPC backend was compiled for another version of Foredraft or llama.cpp."
            if old
            else "llama.cpp's RPC backend is not compiled here.",
            hint=f"Compile it {'again' if old else 'once'}: {BUILD_COMMAND}",
        )
    # It finds ggml's functions in the process.
    ctypes.CDLL(str(binding.library().path), mode=ctypes.RTLD_GLOBAL)
    try:
        handle = ctypes.CDLL(str(path))
    except OSError as error:
        raise BackendError(
            f"{path.name} cannot be loaded: {error}.", hint=f"Compile it again: {BUILD_COMMAND}"
        ) from None
    version = handle.foredraft_rpc_version()
    handle.foredraft_rpc_connect.argtypes = (
        ctypes.c_char_p, ctypes.c_bool, ctypes.POINTER(ctypes.c_void_p), ctypes.c_int,
        ctypes.c_char_p, ctypes.c_size_t,
    )  # fmt: skip
    handle.foredraft_rpc_lost.argtypes = (ctypes.c_char_p,)
    handle.foredraft_rpc_lost.restype = ctypes.c_char_p
    handle.foredraft_rpc_patience.argtypes = (ctypes.c_int,)
    handle.foredraft_rpc_serve.argtypes = (
        ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t,
        ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t, ctypes.c_void_p,
    )  # fmt: skip
    return _Library(
        (version >> 8, version & 255),
        handle.foredraft_rpc_connect,
        handle.foredraft_rpc_lost,
        handle.foredraft_rpc_patience,
        handle.foredraft_rpc_serve,
    )


def reach(endpoints: Sequence[str], cache_dir: Path | None) -> list[Host]:
    """The hosts, greeted and not connected to. Raises BackendError naming the one that cannot be used."""
    return greet(endpoints, library(cache_dir).version)


def connect(endpoints: Sequence[str], cache_dir: Path | None) -> Hosts:
    """Greet the hosts and connect to them. Raises BackendError naming the one that cannot be used."""
    if not endpoints:
        return Hosts()
    native = library(cache_dir)
    devices: list[RemoteDevice] = []
    for host in reach(endpoints, cache_dir):
        count = len(host.memory)
        found = (ctypes.c_void_p * count)()
        name = ctypes.create_string_buffer(_LONGEST_NAME)
        if not native.connect(host.address.encode(), host.ours, found, count, name, _LONGEST_NAME):
            raise _lost(host.endpoint, native.lost(name.value) or b"its devices have changed")
        devices += [
            RemoteDevice(int(found[number] or 0), f"RPC{number}[{host.address}]", name.value.decode(), host)
            for number in range(count)
        ]
    return Hosts(devices, native.lost)
