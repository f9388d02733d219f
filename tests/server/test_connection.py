"""Clients that keep the server waiting, or offer it another protocol: nothing is held for them, or lost."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import httpx
import pytest
import uvicorn

from foredraft.server.connection import MOST_HEAD, MOST_WAITING, Connection, Patience, watch

BRIEF = Patience(head_s=0.3, body_s=0.3, answer_s=0.3)
STOPPING = Patience(head_s=0.3, body_s=0.3, answer_s=0.3, since=0.0)
LONG = Patience(3600, 3600, 3600)
LARGE = 40_000_000
"""Bytes of an answer: more than the system keeps for a client that does not read."""

LEFT = threading.Event()
"""Set when a client has left while it was answered at /left."""


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Answers with what it was asked, or at /large with much."""
    if scope["type"] != "http":
        return
    if scope["path"] == "/refused":
        await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})
        return
    body = b""
    while (message := await receive())["type"] == "http.request":
        body += message["body"]
        if not message["more_body"]:
            break
    else:
        return
    if scope["path"] == "/left":
        while (await receive())["type"] != "http.disconnect":
            pass
        LEFT.set()
        return
    facts = {name: scope[name] for name in ("method", "path")}
    headers = {name.decode(): value.decode() for name, value in scope["headers"]}
    content = json.dumps({**facts, "headers": headers, "body": body.decode()}).encode()
    if scope["path"] == "/large":
        content = b"x" * LARGE
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for begin in range(0, len(content), 1 << 20):
        piece = content[begin : begin + (1 << 20)]
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


@contextmanager
def serving(patience: Patience) -> Iterator[uvicorn.Server]:
    config = uvicorn.Config(
        application, host="127.0.0.1", port=0, http=Connection, ws="none", lifespan="off", log_level="error"
    )
    server = uvicorn.Server(config)

    async def run() -> None:
        watching = asyncio.create_task(watch(server.server_state.connections, patience, 0.02))
        await server.serve()
        watching.cancel()

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    while not server.started:
        threading.Event().wait(0.01)
    try:
        yield server
    finally:
        server.should_exit = server.force_exit = True
        thread.join(20)
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def patient() -> Iterator[uvicorn.Server]:
    with serving(LONG) as server:
        yield server


@pytest.fixture(scope="module")
def brief() -> Iterator[uvicorn.Server]:
    with serving(BRIEF) as server:
        yield server


@pytest.fixture(scope="module")
def stopping() -> Iterator[uvicorn.Server]:
    with serving(STOPPING) as server:
        yield server


def port_of(server: uvicorn.Server) -> int:
    port: int = server.servers[0].sockets[0].getsockname()[1]
    return port


def connect(server: uvicorn.Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port_of(server)), timeout=20)


def rest_of(client: socket.socket) -> bytes:
    """What comes until the server closes the connection."""
    found = b""
    try:
        while piece := client.recv(1 << 20):
            found += piece
    except ConnectionResetError:
        pass
    return found


def takes(client: socket.socket, piece: bytes, times: int, pause_s: float = 0.0) -> bool:
    """Whether the server lets a client send so much."""
    try:
        for _ in range(times):
            client.sendall(piece)
            threading.Event().wait(pause_s)
    except (BrokenPipeError, ConnectionResetError):
        return False
    return True


def one_reply(client: socket.socket) -> bytes:
    """The next answer, to the end of its body."""
    found = b""
    while not found.endswith(b"\r\n0\r\n\r\n"):
        piece = client.recv(1 << 16)
        assert piece, found
        found += piece
    return found


def facts_of(reply: bytes) -> dict[str, Any]:
    """What the application answered with."""
    assert reply.startswith(b"HTTP/1.1 200 OK")
    text = reply.partition(b"\r\n\r\n")[2]
    found: dict[str, Any] = json.loads(text[text.index(b"{") : text.rindex(b"}") + 1])
    return found


OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAEAAEAA\r\nUpgrade: h2c\r\n"
"""What Java's HttpClient sends with its first request."""


@pytest.mark.parametrize("pieces", [1, 7])
def test_a_request_that_offers_another_protocol_keeps_its_body(patient: uvicorn.Server, pieces: int) -> None:
    head = (
        b"POST /asked?a=b HTTP/1.1\r\nHost: here\r\n" + OFFER + b"X-Own: kept\r\nContent-Length: 26\r\n\r\n"
    )
    request = head + b"abcdefghijklmnopqrstuvwxyz"
    with connect(patient) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        step = -(-len(request) // pieces)
        for begin in range(0, len(request), step):
            client.sendall(request[begin : begin + step])
            threading.Event().wait(0.02)
        facts = facts_of(one_reply(client))
        assert (facts["method"], facts["path"]) == ("POST", "/asked")
        assert facts["body"] == "abcdefghijklmnopqrstuvwxyz"
        assert facts["headers"]["x-own"] == "kept"
        assert "upgrade" not in facts["headers"]
        client.sendall(b"GET /again HTTP/1.1\r\nHost: here\r\n\r\n")  # the connection goes on
        assert facts_of(one_reply(client))["path"] == "/again"


def test_so_does_one_for_a_websocket_where_there_is_none(patient: uvicorn.Server) -> None:
    request = b"GET /x HTTP/1.1\r\nHost: here\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    with connect(patient) as client:
        client.sendall(request)
        assert facts_of(one_reply(client))["path"] == "/x"


def test_closing_is_still_heard_beside_an_offer(patient: uvicorn.Server) -> None:
    with connect(patient) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close, Upgrade\r\nUpgrade: h2c\r\n\r\n")
        assert rest_of(client).startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize("target", [b"evil.example:443", b"/v1/models"])
def test_nobody_is_connected_to_others(patient: uvicorn.Server, target: bytes) -> None:
    with connect(patient) as client:
        client.sendall(b"CONNECT " + target + b" HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        status = client.recv(1 << 16).split(b"\r\n")[0]
    assert status in (b"HTTP/1.1 400 Bad Request", b"HTTP/1.1 200 OK")


@pytest.mark.parametrize("filler", [b"a", b"X-A: b\r\n"])
def test_a_head_has_a_size(patient: uvicorn.Server, filler: bytes) -> None:
    """One header that never ends, and headers without end."""
    with connect(patient) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: here\r\nX-Long: ")
        assert not takes(client, filler * 8192, 20_000)
    assert httpx.get(f"http://127.0.0.1:{port_of(patient)}/").status_code == 200


def test_a_head_that_comes_at_once_has_a_size_too(patient: uvicorn.Server) -> None:
    with connect(patient) as client:
        client.sendall(b"GET / HTTP/1.1\r\nX-Long: " + b"a" * (MOST_HEAD + 20_000))
        assert rest_of(client)[:12] in {b"HTTP/1.1 431", b""}, "nothing, if the connection was reset first"


@pytest.mark.parametrize("begin", [b"0\r\na: ", b"0\r\n", b"3\r\nabc\r\n5;"])
@pytest.mark.parametrize("path", [b"/asked", b"/refused"])
def test_so_has_what_is_beside_a_body(patient: uvicorn.Server, path: bytes, begin: bytes) -> None:
    """One trailer that never ends, trailers without end, and an extension of a chunk; also once answered."""
    filler = b"x" if begin[-1:] in b" ;" else b"a: b\r\n"
    with connect(patient) as client:
        client.sendall(
            b"POST " + path + b" HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n" + begin
        )
        assert not takes(client, filler * 8192, 500)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_is_not_counted_with_it(patient: uvicorn.Server, chunked: bool) -> None:
    piece = b"x" * 1000
    headers = {"X-Long": "a" * (MOST_HEAD - 1000)}
    with httpx.Client() as client:
        for _ in range(2):
            body: Any = iter([piece] * 300) if chunked else piece * 300
            reply = client.post(f"http://127.0.0.1:{port_of(patient)}/asked", content=body, headers=headers)
            assert len(reply.json()["body"]) == 300_000


def test_a_head_of_the_usual_size_is_fine(patient: uvicorn.Server) -> None:
    long = {"X-Long": "a" * (MOST_HEAD - 1000)}
    with httpx.Client() as client:
        for _ in range(3):  # each head counts for itself
            assert client.get(f"http://127.0.0.1:{port_of(patient)}/", headers=long).status_code == 200


@pytest.mark.parametrize(
    ("begin", "status"),
    [
        (b"", b"HTTP/1.1 408 Request Timeout"),
        (b"GET / HTTP/1.1\r\nHost: h", b"HTTP/1.1 408 Request Timeout"),
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nabc", b"HTTP/1.1 408 Request Timeout"),
    ],
)
def test_a_request_that_never_ends_is_not_waited_for(
    brief: uvicorn.Server, begin: bytes, status: bytes
) -> None:
    with connect(brief) as client:
        client.sendall(begin)
        assert rest_of(client).startswith(status)


def test_bytes_that_come_slowly_do_not_make_a_head_longer(brief: uvicorn.Server) -> None:
    with connect(brief) as client:
        client.sendall(b"GET / HTTP/1.1\r\nX-Slow: ")
        assert not takes(client, b"a", 1000, pause_s=0.02)


def test_an_answer_that_nobody_reads_is_given_up(brief: uvicorn.Server) -> None:
    with connect(brief) as client:
        client.sendall(b"GET /large HTTP/1.1\r\nHost: here\r\n\r\n")
        while not brief.server_state.connections:
            threading.Event().wait(0.01)
        while brief.server_state.connections:
            threading.Event().wait(0.01)
        assert len(rest_of(client)) < LARGE


def test_who_reads_slowly_gets_everything(brief: uvicorn.Server) -> None:
    """In pauses that are shorter than what is waited for, and together longer."""
    with connect(brief) as client:
        client.sendall(b"GET /large HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
        size = 0
        for part in range(1, 11):
            while size < part * LARGE / 10:
                piece = client.recv(1 << 20)
                assert piece
                size += len(piece)
            threading.Event().wait(0.06)
        assert size + len(rest_of(client)) > LARGE


def test_a_connection_that_is_kept_is_not_begun_anew(brief: uvicorn.Server) -> None:
    with connect(brief) as client:
        for path in ("/one", "/two"):
            client.sendall(f"GET {path} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
            assert facts_of(one_reply(client))["path"] == path
            threading.Event().wait(0.6)


def test_who_reads_a_little_now_and_then_does_not_keep_a_server_from_stopping(
    stopping: uvicorn.Server,
) -> None:
    with connect(stopping) as client:
        client.sendall(b"GET /large HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
        size = 0
        with suppress(ConnectionResetError):
            while piece := client.recv(1 << 16):
                size += len(piece)
                threading.Event().wait(0.05)
        assert size < LARGE


def test_nor_does_a_body_that_comes_byte_by_byte(stopping: uvicorn.Server) -> None:
    with connect(stopping) as client:
        client.sendall(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 900\r\n\r\n")
        assert not takes(client, b"a", 800, pause_s=0.02)


@pytest.mark.parametrize("path", ["/large", "/small"])
def test_who_reads_in_time_gets_everything_while_it_stops(path: str) -> None:
    with serving(Patience(20, 20, 20, since=0.0)) as server, connect(server) as client:
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n".encode())
        assert rest_of(client).endswith(b"0\r\n\r\n")


@pytest.mark.parametrize(
    ("request_", "more"),
    [
        (b"POST /refused HTTP/1.1\r\nHost: h\r\nContent-Length: 9000\r\n\r\n", b"a"),
        (b"GET /refused HTTP/1.1\r\nHost: h\r\n\r\n", b"\r\n"),
    ],
)
def test_a_connection_that_was_answered_is_not_held_open_byte_by_byte(
    brief: uvicorn.Server, request_: bytes, more: bytes
) -> None:
    with connect(brief) as client:
        client.sendall(request_)
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 401")
        assert not takes(client, more, 500, pause_s=0.02)


def test_who_asks_twice_and_leaves_ends_what_runs(patient: uvicorn.Server) -> None:
    LEFT.clear()
    with connect(patient) as client:
        client.sendall(b"GET /left HTTP/1.1\r\nHost: h\r\n\r\nGET /next HTTP/1.1\r\nHost: h\r\n\r\n")
        while not patient.server_state.tasks:
            threading.Event().wait(0.01)
        threading.Event().wait(0.1)
    assert LEFT.wait(10)


def test_a_server_that_stops_begins_no_request_that_waits() -> None:
    with serving(LONG) as server, connect(server) as client:
        client.sendall(b"GET /large HTTP/1.1\r\nHost: h\r\n\r\n" * 3)
        assert client.recv(10) == b"HTTP/1.1 2"
        server.should_exit = True
        while any(listener.is_serving() for listener in server.servers):
            threading.Event().wait(0.01)
        rest = rest_of(client)
    assert rest.endswith(b"0\r\n\r\n")
    assert rest.count(b"HTTP/1.1 200 OK") == 0


def test_so_many_requests_of_one_connection_wait_and_no_more(patient: uvicorn.Server) -> None:
    with connect(patient) as client:
        client.sendall(b"GET /asked HTTP/1.1\r\nHost: h\r\n\r\n" * 500)
        replies = rest_of(client)
    assert replies.count(b"HTTP/1.1 200 OK") == MOST_WAITING
    assert replies.count(b"connection: close") == 1
    assert replies.endswith(b"0\r\n\r\n")


def test_as_many_as_may_wait_go_on_for_ever(patient: uvicorn.Server) -> None:
    with connect(patient) as client:
        for _ in range(3):
            client.sendall(b"GET /asked HTTP/1.1\r\nHost: h\r\n\r\n" * MOST_WAITING)
            got = b""
            while got.count(b"0\r\n\r\n") < MOST_WAITING:
                piece = client.recv(1 << 16)
                assert piece, got
                got += piece
            assert b"connection: close" not in got


class _Transport(asyncio.Transport):
    """A transport with so many bytes that the client has not read."""

    unread = 0
    aborted = False

    def get_write_buffer_size(self) -> int:
        return self.unread

    def abort(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None:
        pass

    def is_closing(self) -> bool:
        return self.aborted


def test_what_comes_with_a_head_is_no_part_of_it() -> None:
    """The end of a long body and the beginning of the next head, in one piece."""
    config = uvicorn.Config(application, http=Connection, lifespan="off", log_config=None)
    config.load()
    with closing(asyncio.new_event_loop()) as loop:
        connection = Connection(config, uvicorn.server.ServerState(), {}, loop)
        connection.connection_made(_Transport())
        body = b"a" * 2 * MOST_HEAD
        connection.data_received(b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body))
        connection.data_received(body + b"GET / HTTP/1.1\r\nHo")
        connection.data_received(b"st: h\r\n\r\n")
        assert len(connection.pipeline) == 1
        for task in asyncio.all_tasks(loop):
            task.cancel()
            with suppress(asyncio.CancelledError):
                loop.run_until_complete(task)


def test_a_server_that_stops_counts_from_when_the_client_fell_behind() -> None:
    """Not from the stop: an answer may take long, and its client read all that has come of it."""
    config = uvicorn.Config(application, http=Connection, lifespan="off", log_config=None)
    config.load()
    transport = _Transport()
    with closing(asyncio.new_event_loop()) as loop:
        connection = Connection(config, uvicorn.server.ServerState(), {}, loop)
        connection.connection_made(transport)
        patience = Patience(5, 5, 5, since=100.0)
        for now, unread, aborted in (
            (80.0, 0, False),
            (90.0, 7, False),  # before the stop
            (104.0, 6, False),
            (104.5, 0, False),  # it has read everything
            (310.0, 0, False),
            (310.1, 5, False),
            (314.0, 4, False),
            (315.1, 3, True),
        ):
            transport.unread = unread
            connection.check(now, patience if now >= 100 else LONG)
            assert transport.aborted is aborted, now
