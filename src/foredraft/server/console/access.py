"""Who may change things: the admin, and a browser only from this server's own pages.

A page on another origin can make a browser send requests. Bodies have to be JSON (`gate.py`), which needs
permission by CORS; origins with that permission (`cors_origins`) may use the models, not the console.

A page can also make its own domain resolve to this server's address (DNS rebinding); for the browser both are
then the same origin. Where a key is needed the page has none. Without keys the server answers other names
and other machines only with `--allow-public`. Who comes by a name is not the admin then: an address by number
cannot be taken over. Nor is a client on another machine: `--allow-public` lets all clients use the models,
not lock out the owner.
"""

from __future__ import annotations

import re
from dataclasses import replace
from ipaddress import ip_address

from fastapi import Request

from foredraft.errors import PermissionDeniedError
from foredraft.server.auth import Caller, without_port
from foredraft.server.caller import caller_of
from foredraft.server.checks import is_loopback
from foredraft.server.settings import LOCAL_CALLER
from foredraft.server.strict_json import before_body

_FOLDERS = re.compile(r"(?<![^=])(?:[A-Za-z]:)?[/\\][^;,=]*[/\\]")


@before_body
async def admin_of(request: Request) -> Caller:
    """The caller, who is the admin: a FastAPI dependency of every change, and of what only the admin sees.

    Raises PermissionDeniedError, also for a request that a page of another origin sent.
    """
    check_origin(request)
    caller = caller_of(request)
    if caller.admin and not as_reached(request, caller).admin:
        raise PermissionDeniedError(
            "Without keys only requests from the server's own machine, to its address by number, may change "
            "anything.",
            hint="Use http://127.0.0.1 there, or make an admin key with 'foredraft keys admin'.",
        )
    caller.require_admin()
    return caller


@before_body
async def reader_of(request: Request) -> Caller:
    """The caller: a FastAPI dependency of everything else. Raises what `check_origin` raises."""
    check_origin(request)
    return as_reached(request, caller_of(request))


def check_origin(request: Request) -> None:
    """Raises PermissionDeniedError if the request comes from a page that is not this server's."""
    origin, host = request.headers.get("origin"), request.headers.get("host", "")
    foreign = origin is not None and (not host or origin.partition("://")[2] != host)
    if foreign or request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        raise PermissionDeniedError(
            "The console answers this server's own page and programs, not pages of other origins.",
            hint=f"Open the page of this server: http://{host or 'HOST:PORT'}/",
        )


def as_reached(request: Request, caller: Caller) -> Caller:
    """The caller, who without a key is the admin only from this machine, and not if only a name says that
    this server was meant.
    """
    if caller.name != LOCAL_CALLER:
        return caller
    host, peer = request.headers.get("host"), request.client
    meant = host is None or _is_certain(without_port(host))
    here = peer is not None and is_loopback(peer.host)
    return caller if meant and here else replace(caller, admin=False)


def without_folders(text: str) -> str:
    """A setting as who is not the admin sees it: of files, also those named by an option, only the names."""
    return _FOLDERS.sub("", text)


def _is_certain(name: str) -> bool:
    """Whether a host name stands for this server whatever a name server says."""
    if is_loopback(name):
        return True
    try:
        ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True
