"""RPC hosts before llama.cpp connects to them: what they are, and what is wrong with them.

llama.cpp waits for minutes where packets are dropped, and says little of a host that is none. So each is
greeted here first, with time limits: its protocol, its devices, how long a round trip takes.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter

from foredraft.errors import BackendError

MOST_DEVICES = 16

CONNECT_S, ANSWER_S = 5.0, 10.0
"""Time limits in seconds: of a connection, and of an answer."""

_HELLO, _DEVICE_COUNT, _DEVICE_MEMORY = 14, 15, 11
_MARK = b"foredraft\x01"
"""As in `native/rpc/transport.cpp`, where it is explained."""

_CAPS = 24
_MOST_REPLY = 64
"""Bytes of the replies that are asked for here, and more."""

_ROUND_TRIPS = 5


@dataclass(frozen=True, slots=True)
class Host:
    """A host that answered, by the name that the user gave it and its address, both with the port. `memory`:
    (free, all) bytes of each device. `ours`: it is a `foredraft rpc-server`; `on_processors`: one whose
    devices are all processors.
    """

    endpoint: str
    address: str
    protocol: str
    round_trip_ms: float
    memory: tuple[tuple[int, int], ...]
    ours: bool
    on_processors: bool


class _NoAnswerError(Exception):
    """Why a host cannot be used, in a clause; `hint` says what to do."""

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(reason)
        self.hint = hint


def greet(endpoints: Sequence[str], version: tuple[int, int]) -> list[Host]:
    """The hosts, asked at the same time; `version`: of the protocol here. Raises BackendError for the first
    that cannot be used, and for two names of one: its memory would count twice.
    """
    with ThreadPoolExecutor(max(len(endpoints), 1)) as pool:
        hosts = list(pool.map(lambda endpoint: _greet(endpoint, version), endpoints))
    seen: dict[str, str] = {}
    for host in hosts:
        other = seen.setdefault(host.address, host.endpoint)
        if other != host.endpoint:
            raise BackendError(
                f"{other} and {host.endpoint} are the same RPC host.", hint="Name it only once."
            )
    return hosts


def _greet(endpoint: str, version: tuple[int, int]) -> Host:
    try:
        return _asked(endpoint, version)
    except _NoAnswerError as error:
        raise BackendError(f"The RPC host {endpoint} {error}.", hint=error.hint) from None


def _asked(endpoint: str, version: tuple[int, int]) -> Host:
    name, _, port = endpoint.rpartition(":")
    with _connected(name, int(port)) as opened:
        address, _ = opened.getpeername()
        connection = _Connection(opened, perf_counter() + ANSWER_S)
        try:
            reply = connection.call(_HELLO, _MARK.ljust(_CAPS, b"\0"))
            _check(reply, version)
            ours = connection.framed = reply[4 : 4 + len(_MARK)] == _MARK
            memory, took = [], []
            for _ in range(_ROUND_TRIPS):
                began = perf_counter()
                (count,) = struct.unpack("<I", connection.call(_DEVICE_COUNT, b""))
                took.append(perf_counter() - began)
            for device in range(min(count, MOST_DEVICES)):
                sizes = connection.call(_DEVICE_MEMORY, struct.pack("<I", device))
                memory.append(struct.unpack("<QQ", sizes))
        except TimeoutError:
            raise _NoAnswerError(
                f"accepts connections but does not answer within {ANSWER_S:.0f} s",
                "It may be no RPC server, or llama.cpp's own with another client: that serves one at a time.",
            ) from None
        except (OSError, struct.error, EOFError):
            raise _NoAnswerError(
                "does not speak the protocol: it is no RPC server, or of another version",
                _same_version(version),
            ) from None
    if not memory:
        raise _NoAnswerError("has no devices", "Start it with at least one.")
    protocol = ".".join(map(str, reply[:3]))
    on_processors = ours and bool(reply[4 + len(_MARK)])
    return Host(endpoint, f"{address}:{port}", protocol, min(took) * 1e3, tuple(memory), ours, on_processors)


class _Connection:
    """Commands and replies, until a moment of `perf_counter`, after which there is a TimeoutError. `framed`:
    what is read is divided into frames, each with its size before it.
    """

    def __init__(self, opened: socket.socket, until: float) -> None:
        self._opened, self._until = opened, until
        self.framed = False
        self._left = 0

    def call(self, command: int, request: bytes) -> bytes:
        """The reply. Raises EOFError if it is none."""
        self._opened.sendall(struct.pack("<BQ", command, len(request)) + request)
        (size,) = struct.unpack("<Q", self._read(8))
        if size > _MOST_REPLY:
            raise EOFError
        return self._read(size)

    def _read(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            if not self.framed:
                return self._received(size)
            while not self._left:
                (self._left,) = struct.unpack("<I", self._received(4))
            part = self._received(min(size - len(found), self._left))
            self._left -= len(part)
            found += part
        return found

    def _received(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            self._opened.settimeout(max(self._until - perf_counter(), 0.001))
            part = self._opened.recv(size - len(found))
            if not part:
                raise EOFError
            found += part
        return found


def _connected(name: str, port: int) -> socket.socket:
    start_it = f"Start it there: foredraft rpc-server --host {name} --port {port}"
    try:
        connection = _connected_to_first(name, port)
    except TimeoutError:
        raise _NoAnswerError(
            f"does not answer within {CONNECT_S:.0f} s",
            "Look whether it is on, and whether a firewall lets the port through.",
        ) from None
    except ConnectionRefusedError:
        raise _NoAnswerError("is down: it refuses the connection", start_it) from None
    except socket.gaierror:
        raise _NoAnswerError("is not known by that name", "Name it by its IPv4 address.") from None
    except OSError as error:
        raise _NoAnswerError(f"cannot be reached: {error.strerror}", start_it) from None
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _connected_to_first(name: str, port: int) -> socket.socket:
    """A connection to the first of a name's addresses that accepts one. IPv4 only, as `native/rpc` is. Raises
    OSError.
    """
    found = socket.getaddrinfo(name, port, socket.AF_INET, socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(address for *_, address in found))
    failed = OSError("it has no address")
    for address in addresses:
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        connection.settimeout(CONNECT_S / len(addresses))
        try:
            connection.connect(address)
        except OSError as error:
            connection.close()
            failed = error
        else:
            return connection
    raise failed


def _check(reply: bytes, version: tuple[int, int]) -> None:
    """Raises _NoAnswerError for another version of the protocol."""
    if len(reply) < 3:
        raise EOFError
    major, minor = reply[0], reply[1]
    if len(reply) != 4 + _CAPS or major != version[0] or minor > version[1]:
        found, needed = f"{major}.{minor}", f"{version[0]}.{version[1]}"
        raise _NoAnswerError(f"has version {found} of the RPC protocol, not {needed}", _same_version(version))


def _same_version(version: tuple[int, int]) -> str:
    return (
        "Run the same version of Foredraft there (foredraft rpc-server), or llama.cpp's rpc-server with "
        f"version {version[0]}.{version[1]} of the protocol."
    )
