"""Pictures from http and https addresses, where the settings allow them.

A server that fetches what clients name can be made to ask machines that only it reaches. So an address is
resolved once, connected to by its number, and refused if it is not on the public internet; the same holds for
where it redirects to. Nothing else is sent along: no cookie, no proxy, no key.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import time
from collections.abc import Sequence
from contextlib import suppress
from threading import Timer
from typing import Any, Final
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from foredraft.errors import RequestError, first_line
from foredraft.pictures import shown

MOST_REDIRECTS: Final = 3
MOST_ADDRESSES: Final = 4
"""Addresses of a name that are tried. They share the time that is left."""
_MOVED: Final = (301, 302, 303, 307, 308)
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
_UNICAST: Final = ipaddress.ip_network("2000::/3")
"""The IPv6 addresses that are given out (RFC 4291, section 2.4; IANA's registry)."""
_NOWHERE: Final = tuple(map(ipaddress.ip_network, ("192.88.99.0/24", "2001:db8::/32", "3fff::/20")))
"""Old relays of 6to4 (RFC 7526) and addresses for documentation, which not every Python knows as such."""
_ELSEWHERE: Final = "Send the image itself, as data:image/png;base64,…"


def fetch(
    url: str, *, max_bytes: int, timeout_s: float, private: bool = False, what: str = "The image"
) -> bytes:
    """What is at an http or https address. `private`: also on private, loopback and link-local addresses.
    `timeout_s`: for everything, redirects included; looking a name up is bounded by the system alone.

    Raises RequestError, which begins with `what`.
    """
    until = time.monotonic() + timeout_s
    for _ in range(MOST_REDIRECTS + 1):
        parts = _split(url, what)
        addresses = _resolved(parts, url, private=private, what=what)
        try:
            found = _got(parts, addresses, max_bytes, until - time.monotonic(), what)
            if time.monotonic() >= until:  # the end that it read may be that of a connection hung up
                raise TimeoutError
        except (OSError, http.client.HTTPException, ValueError) as error:
            if isinstance(error, TimeoutError) or time.monotonic() >= until:
                raise RequestError(
                    f"{what}: {shown(url)} did not answer within {timeout_s:g} s.", hint=_ELSEWHERE
                ) from None
            raise _unreachable(what, url, error) from None
        if isinstance(found, bytes):
            return found
        url = urljoin(url, found)
    raise RequestError(f"{what}: {shown(url)} redirects too often.", hint=_ELSEWHERE)


def _got(
    parts: SplitResult, addresses: Sequence[str], max_bytes: int, left_s: float, what: str
) -> bytes | str:
    """The content, or where it has moved to. What takes longer than `left_s` seconds fails: a server could
    send a byte now and then.
    """
    if left_s <= 0:
        raise TimeoutError
    port = parts.port or (443 if parts.scheme == "https" else 80)
    connection = http.client.HTTPConnection(parts.hostname or "", port, timeout=left_s)
    connection.sock = _socket(addresses, port, left_s)
    hang_up = Timer(left_s, _hung_up, (connection,))
    hang_up.daemon = True
    hang_up.start()
    try:
        if parts.scheme == "https":
            context = ssl.create_default_context()
            secured = context.wrap_socket(
                connection.sock, server_hostname=parts.hostname, do_handshake_on_connect=False
            )
            connection.sock = secured
            secured.do_handshake()
        answer = _asked(connection, parts)
        if answer.status in _MOVED and (moved := answer.getheader("location")):
            return moved
        if answer.status != 200:
            raise RequestError(
                f"{what}: {parts.hostname} answered with status {answer.status}.", hint=_ELSEWHERE
            )
        return _body(answer, max_bytes, what)
    finally:
        hang_up.cancel()
        connection.close()


def _hung_up(connection: http.client.HTTPConnection) -> None:
    with suppress(OSError):
        connection.sock.shutdown(socket.SHUT_RDWR)


def _split(url: str, what: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise RequestError(f"{what} has an invalid address: {first_line(error)}.") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise RequestError(f"{what}: {shown(url)} is not an http or https address.", hint=_ELSEWHERE)
    if parts.username or parts.password:
        raise RequestError(f"{what}: an address with a user name is not fetched.", hint=_ELSEWHERE)
    return parts


def _resolved(parts: SplitResult, url: str, *, private: bool, what: str) -> Sequence[str]:
    """The host's addresses, all of which may be fetched from. Raises RequestError."""
    host = parts.hostname or ""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise _unreachable(what, url, error) from None
    addresses = [str(entry[4][0]) for entry in found]
    for address in () if private else addresses:
        check_public(address, host, what)
    return addresses


def _socket(addresses: Sequence[str], port: int, timeout_s: float) -> socket.socket:
    failed: OSError | None = None
    until = time.monotonic() + timeout_s
    tried = addresses[:MOST_ADDRESSES]
    for index, address in enumerate(tried):
        left_s = until - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        try:
            return socket.create_connection((address, port), timeout=left_s / (len(tried) - index))
        except OSError as error:
            failed = error
    raise failed or OSError("no address")


def check_public(address: str, host: str, what: str) -> None:
    """Raises RequestError for an address that is not on the public internet."""
    number = ipaddress.ip_address(address.partition("%")[0])
    inner: Any = None
    translated = False
    if isinstance(number, ipaddress.IPv6Address):
        inner = number.ipv4_mapped or number.sixtofour or (number.teredo[1] if number.teredo else None)
        if number in _NAT64:
            inner = ipaddress.IPv4Address(int(number) & 0xFFFFFFFF)
        translated = number in _NAT64 or number.ipv4_mapped is not None
    if (translated or _is_public(number)) and (inner is None or _is_public(inner)):
        return
    raise RequestError(
        f"{what}: {host} is at a private address, which is not fetched.",
        hint="Send the image itself, or have remote_private set to true under [images] in the settings.",
    )


def _is_public(number: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    if isinstance(number, ipaddress.IPv6Address) and (number.is_site_local or number not in _UNICAST):
        return False
    special = number.is_reserved or number.is_multicast or any(number in network for network in _NOWHERE)
    return number.is_global and not special


def _asked(connection: http.client.HTTPConnection, parts: SplitResult) -> http.client.HTTPResponse:
    path = quote(parts.path or "/", safe="/%:=&?~#+!$,;'@()*[]")
    query = f"?{quote(parts.query, safe='/%:=&?~#+!$,;@()*[]')}" if parts.query else ""
    headers = {"Accept": "image/*", "Accept-Encoding": "identity", "User-Agent": "foredraft"}
    connection.request("GET", path + query, headers=headers)
    return connection.getresponse()


def _body(answer: http.client.HTTPResponse, max_bytes: int, what: str) -> bytes:
    data = answer.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise RequestError(
            f"{what} is larger than {max_bytes} bytes.", hint="Name a smaller one, or send it itself."
        )
    if answer.length:
        raise http.client.IncompleteRead(data, answer.length)
    return data


def _unreachable(what: str, url: str, error: Exception) -> RequestError:
    return RequestError(f"{what}: {shown(url)} cannot be fetched: {first_line(error)}.", hint=_ELSEWHERE)
