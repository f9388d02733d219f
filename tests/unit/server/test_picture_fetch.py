"""Fetching pictures: nothing that is not on the public internet, nothing larger or slower than allowed."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from foredraft.errors import RequestError
from foredraft.server.picture_fetch import MOST_ADDRESSES, check_public, fetch


class Pages(BaseHTTPRequestHandler):
    """A site with pages of every kind that a fetch may meet."""

    asked: list[tuple[str, dict[str, str]]]

    def do_GET(self) -> None:
        self.asked.append((self.path, dict(self.headers)))
        if self.path.startswith("/picture"):
            self._answer(200, b"picture")
        elif self.path == "/large":
            self._answer(200, b"x" * 5000)
        elif self.path == "/again":
            self._answer(302, b"", location="/again")
        elif self.path == "/moved":
            self._answer(301, b"", location="picture.png")
        elif self.path == "/elsewhere":
            self._answer(302, b"", location="http://169.254.169.254/latest/meta-data")
        elif self.path == "/file":
            self._answer(302, b"", location="file:///etc/passwd")
        elif self.path == "/short":
            self._answer(200, b"half", length=8)
        elif self.path == "/drip":
            self.wfile.write(b"HTTP/1.1 200 OK\r\n")
            for number in range(100):
                self.wfile.write(f"x-{number}: 1\r\n".encode())
                time.sleep(0.05)
        else:
            self._answer(404, b"")

    def _answer(self, status: int, body: bytes, *, location: str = "", length: int | None = None) -> None:
        self.send_response(status)
        if location:
            self.send_header("location", location)
        self.send_header("content-length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        pass


class Quiet(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # the client hung up


@pytest.fixture
def site() -> Iterator[str]:
    Pages.asked = []
    with Quiet(("127.0.0.1", 0), Pages) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def got(url: str, *, private: bool = True, max_bytes: int = 1000, timeout_s: float = 5.0) -> bytes:
    return fetch(url, max_bytes=max_bytes, timeout_s=timeout_s, private=private)


def test_a_picture_and_one_that_has_moved(site: str) -> None:
    assert got(f"{site}/picture.png?a=b#c") == b"picture"
    assert got(f"{site}/moved") == b"picture"
    assert [path for path, _ in Pages.asked] == ["/picture.png?a=b", "/moved", "/picture.png"]
    assert not any({"Authorization", "Cookie"} & set(headers) for _, headers in Pages.asked)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/large", "larger than 1000 bytes"),
        ("/again", "redirects too often"),
        ("/missing", "status 404"),
        ("/short", "cannot be fetched"),
        ("/file", "not an http or https address"),
    ],
)
def test_what_is_no_picture_is_refused(site: str, path: str, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        got(site + path)


def test_private_addresses_are_not_asked(site: str) -> None:
    for url in (site, site.replace("127.0.0.1", "localhost"), "http://[::1]:1", "http://[::ffff:10.0.0.1]"):
        with pytest.raises(RequestError, match="private address"):
            got(f"{url}/picture", private=False)
    assert Pages.asked == []


def test_a_redirect_to_a_private_address_is_not_followed(site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name counts as public here; where it redirects to does not."""
    look_up = socket.getaddrinfo

    def public(host: str, *arguments: Any, **options: Any) -> Any:
        if host == "pictures.example.org":
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))]
        return look_up(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", public)

    def checked(address: str, host: str, what: str) -> None:
        if host != "pictures.example.org":
            check_public(address, host, what)

    monkeypatch.setattr("foredraft.server.picture_fetch.check_public", checked)
    with pytest.raises(RequestError, match=r"169\.254\.169\.254 is at a private"):
        got(site.replace("127.0.0.1", "pictures.example.org") + "/elsewhere", private=False)


def test_a_name_is_looked_up_once(site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is public when it is checked and private when it is connected to must not get through."""
    asked: list[str] = []
    port = int(site.rpartition(":")[2])
    look_up = socket.getaddrinfo

    def rebinding(host: str, *arguments: Any, **options: Any) -> Any:
        if host != "rebinding.example.org":
            return look_up(host, *arguments, **options)
        asked.append(host)
        address = "127.0.0.1" if len(asked) > 1 else "127.0.0.2"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0))]

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    with pytest.raises(RequestError, match="cannot be fetched"):  # nothing listens at 127.0.0.2
        got(f"http://rebinding.example.org:{port}/picture")
    assert len(asked) == 1


def test_a_site_that_drips_is_hung_up_on(site: str) -> None:
    with pytest.raises(RequestError, match=r"did not answer within 0\.3 s"):
        got(f"{site}/drip", timeout_s=0.3)


def test_the_time_is_for_all_addresses_of_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[float] = []

    def waits(address: tuple[str, int], timeout: float) -> socket.socket:
        tried.append(timeout)
        time.sleep(timeout)
        raise TimeoutError

    def many(*arguments: Any, **options: Any) -> Any:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.1.{n}", 0)) for n in range(50)]

    monkeypatch.setattr(socket, "getaddrinfo", many)
    monkeypatch.setattr(socket, "create_connection", waits)
    begun = time.monotonic()
    with pytest.raises(RequestError, match=r"did not answer within 0\.4 s"):
        got("http://pictures.example.org/picture", timeout_s=0.4)
    assert time.monotonic() - begun < 0.8
    assert 1 < len(tried) <= MOST_ADDRESSES


@pytest.mark.parametrize(
    "url", ["http://", "http://user:word@host/", "http://[::1", "gopher://host/", "http://host:99999/"]
)
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(RequestError):
        got(url)


INSIDE = """
10.1.2.3 172.16.0.1 192.168.0.1 127.0.0.1 169.254.169.254 0.0.0.0 100.64.0.1 224.0.0.1
::1 fe80::1%eth0 fd00::1 ::ffff:127.0.0.1 64:ff9b:1::1 64:ff9b::a00:1 2002:7f00:1::
::7f00:1 ::127.0.0.1 ::ffff:0:127.0.0.1 ::2 fec0::1 5f00::1 192.88.99.1 4000::1 2001:db8::1 3fff::1
"""


@pytest.mark.parametrize("address", INSIDE.split())
def test_addresses_that_only_this_network_reaches(address: str) -> None:
    with pytest.raises(RequestError, match="private address"):
        check_public(address, "host", "The image")


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:2800:220:1::1"])
def test_public_addresses(address: str) -> None:
    check_public(address, "host", "The image")
