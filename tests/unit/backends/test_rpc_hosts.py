"""What is said of RPC hosts that are down, or none, or of another version."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from foredraft.backends.llamacpp.rpc import hosts
from foredraft.backends.llamacpp.rpc.hosts import greet
from foredraft.config import MOST_RPC_HOSTS, rpc_endpoints
from foredraft.errors import BackendError, ConfigError

VERSION = (8, 0)
GIB = 1 << 30

Server = Callable[[socket.socket], None]


@contextmanager
def serving(serve: Server, times: int = 1) -> Iterator[str]:
    """The address of a server that treats one connection so, or several, one after another."""
    with socket.create_server(("127.0.0.1", 0)) as listens:

        def run() -> None:
            for _ in range(times):
                connection, _ = listens.accept()
                with connection:
                    serve(connection)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listens.getsockname()[1]}"
        thread.join(10)


def greeting(major: int, minor: int = 0, caps: bytes = b"") -> Server:
    """A server of this version, with a device of 1 GiB."""

    def serve(connection: socket.socket) -> None:
        framed = False
        while request := connection.recv(9):
            connection.recv(struct.unpack("<Q", request[1:])[0])
            command = request[0]
            reply = {
                14: bytes((major, minor, 0, 0)) + caps.ljust(24, b"\0"),
                15: struct.pack("<I", 1),
                11: struct.pack("<QQ", GIB // 2, GIB),
            }[command]
            for part in (struct.pack("<Q", len(reply)), reply):
                if framed:  # after a sign of life
                    connection.sendall(bytes(4) + struct.pack("<I", len(part)))
                connection.sendall(part)
            framed = framed or bool(caps)

    return serve


def test_hosts_are_read() -> None:
    assert rpc_endpoints(["a:1,b", " 10.0.0.2:65535 "]) == ("a:1", "b:50052", "10.0.0.2:65535")


@pytest.mark.parametrize(
    "names",
    [[""], ["a b"], ["a:"], ["a:0"], ["a:65536"], ["a:1", "a:1"], ["::1"], ["a,"], ["a:1:2"]],
)
def test_what_is_no_host_is_refused(names: list[str]) -> None:
    with pytest.raises(ConfigError):
        rpc_endpoints(names)


def test_names_of_hosts_are_the_same_in_any_case() -> None:
    assert rpc_endpoints(["Far.example"]) == ("far.example:50052",)
    with pytest.raises(ConfigError, match="named twice"):
        rpc_endpoints(["far:1", "FAR:1"])


def test_too_many_hosts_are_refused() -> None:
    with pytest.raises(ConfigError, match="17 RPC hosts"):
        rpc_endpoints([f"h{number}" for number in range(MOST_RPC_HOSTS + 1)])


def test_a_server_of_llama_cpp_is_greeted() -> None:
    with serving(greeting(8)) as address:
        [host] = greet([address], VERSION)
    assert (host.protocol, host.memory, host.ours, host.on_processors) == (
        "8.0.0", ((GIB // 2, GIB),), False, False,
    )  # fmt: skip
    assert host.round_trip_ms > 0


def test_a_server_of_ours_is_greeted() -> None:
    with serving(greeting(8, caps=b"foredraft\x01\x01")) as address:
        [host] = greet([address], VERSION)
    assert (host.memory, host.ours, host.on_processors) == (((GIB // 2, GIB),), True, True)


@pytest.mark.parametrize(("major", "minor"), [(7, 0), (9, 0), (8, 1)])
def test_another_version_is_said(major: int, minor: int) -> None:
    with serving(greeting(major, minor)) as address, pytest.raises(BackendError) as error:
        greet([address], VERSION)
    assert f"has version {major}.{minor} of the RPC protocol, not 8.0" in error.value.message
    assert address in error.value.message
    assert "same version" in (error.value.hint or "")


@pytest.mark.parametrize(
    "reply", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", bytes(8), struct.pack("<Q", 28) + b"\x08"]
)
def test_what_is_no_rpc_server_is_said(reply: bytes) -> None:
    with (
        serving(lambda connection: connection.sendall(reply)) as address,
        pytest.raises(BackendError) as error,
    ):
        greet([address], VERSION)
    assert "no RPC server" in error.value.message


def test_a_host_that_is_down_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(BackendError, match="is down") as error:
        greet([address], VERSION)
    assert f"foredraft rpc-server --host 127.0.0.1 --port {address.partition(':')[2]}" in (
        error.value.hint or ""
    )


def test_a_host_that_says_nothing_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "ANSWER_S", 0.2)
    heard = threading.Event()

    def say_nothing(connection: socket.socket) -> None:
        assert heard.wait(10), connection

    with serving(say_nothing) as address:
        with pytest.raises(BackendError, match="does not answer within"):
            greet([address], VERSION)
        heard.set()


@pytest.mark.parametrize("framed", [False, True])
def test_a_host_that_answers_ever_so_slowly_is_not_waited_for_long(
    monkeypatch: pytest.MonkeyPatch, framed: bool
) -> None:
    """Byte by byte; or only with signs of life, as one that computes."""
    monkeypatch.setattr(hosts, "ANSWER_S", 0.5)

    def drip(connection: socket.socket) -> None:
        caps = b"foredraft\x01\x01"
        whole = struct.pack("<Q", 28) + bytes((8, 0, 0, 0)) + caps.ljust(24, b"\0")
        with suppress(OSError):
            if framed:
                connection.sendall(whole)
                whole = bytes(4000)
            for byte in whole:
                connection.sendall(bytes((byte,)))
                time.sleep(0.1)

    with serving(drip) as address, pytest.raises(BackendError, match="does not answer within"):
        greet([address], VERSION)


def addresses(monkeypatch: pytest.MonkeyPatch, **known: list[str]) -> None:
    """Names that have these addresses."""

    def look(name: str, port: int, *_: object) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        kind = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        return [(*kind, (address, port)) for address in known.get(name, [name])]

    monkeypatch.setattr(socket, "getaddrinfo", look)


def test_a_name_with_several_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is greeted is what is connected to."""
    addresses(monkeypatch, far=["127.0.0.2", "127.0.0.1"])
    with serving(greeting(8)) as address:
        port = address.partition(":")[2]
        [host] = greet([f"far:{port}"], VERSION)
    assert (host.endpoint, host.address) == (f"far:{port}", address)


def test_two_names_of_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses(monkeypatch, far=["127.0.0.1"])
    with serving(greeting(8), times=2) as address:
        other = f"far:{address.partition(':')[2]}"
        with pytest.raises(BackendError, match=f"{address} and {other} are the same RPC host"):
            greet([address, other], VERSION)


def test_a_name_that_nobody_knows_is_said() -> None:
    with pytest.raises(BackendError, match="is not known by that name"):
        greet(["nowhere.invalid:50052"], VERSION)
