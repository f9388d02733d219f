"""Authentication: API keys, the admin key, and where a server without keys may listen.

Keys are 256 random bits and cannot be guessed, so storing their SHA-256 is enough: slow hashes and salts
protect passwords that people chose. A fast hash also keeps wrong keys cheap for the server.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from foredraft.errors import AuthenticationError, ConfigError, PermissionDeniedError
from foredraft.server.checks import is_loopback
from foredraft.server.settings import ADMIN_CALLER, LOCAL_CALLER, KeySettings

PREFIX = "ft-"
KEY_BYTES = 32
HASH_KIND = "sha256:"

HOW_TO_SEND = "Send it as 'Authorization: Bearer KEY' or as 'x-api-key: KEY'."


def new_key() -> str:
    """A key: "ft-" and 43 characters that are safe in URLs and shells."""
    return PREFIX + secrets.token_urlsafe(KEY_BYTES)


def hash_key(key: str) -> str:
    """The stored form of a key: "sha256:" and 64 hexadecimal digits."""
    return HASH_KIND + _digest(key).hex()


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "replace")).digest()


@dataclass(frozen=True, slots=True)
class Caller:
    """Sender of a request. `scope` separates what is learned from texts; limits as in `KeySettings`.
    `key_hash`: of the key; a new key under the name of an old one is a different caller.
    """

    name: str
    scope: str
    admin: bool = False
    requests_per_minute: int | None = None
    max_concurrent: int | None = None
    max_priority: int | None = None
    key_hash: str | None = None

    @property
    def identity(self) -> str:
        """What no other caller has."""
        return self.key_hash or self.name

    def require_admin(self) -> None:
        """Raises PermissionDeniedError unless the caller is the admin."""
        if not self.admin:
            raise PermissionDeniedError(
                "This requires the admin key.",
                hint="Send the admin key. 'foredraft keys admin' creates one.",
            )


class Authenticator:
    """Checks the keys of a settings object. Without keys every caller is the local caller.

    The local caller is also the admin, unless there is an admin key.
    """

    def __init__(self, keys: Sequence[KeySettings] = (), admin_key_hash: str | None = None) -> None:
        self._callers = [
            (
                _stored(key.hash),
                Caller(
                    key.name,
                    key.effective_scope,
                    requests_per_minute=key.requests_per_minute,
                    max_concurrent=key.max_concurrent,
                    max_priority=key.max_priority,
                    key_hash=key.hash,
                ),
            )
            for key in keys
        ]
        if admin_key_hash is not None:
            self._callers.append((_stored(admin_key_hash), Caller(ADMIN_CALLER, ADMIN_CALLER, admin=True)))
        self._local = None if keys else Caller(LOCAL_CALLER, "", admin=admin_key_hash is None)

    def check(self, *headers: str | None) -> Caller:
        """The caller, by the values of `Authorization` and `x-api-key` (None: not sent), in any order.

        The first valid one counts: clients send both if their environment contains both. Raises
        AuthenticationError, which never repeats the value sent.
        """
        given = [header.strip() for header in headers if header is not None and header.strip()]
        for header in given:
            caller = self._find(_credential(header))
            if caller is not None:
                return caller
        if self._local is not None:
            # Many clients always send a key, so without configured keys any value is accepted.
            return self._local
        if not given:
            raise AuthenticationError("No API key was given.", hint=HOW_TO_SEND)
        raise AuthenticationError("The API key is not valid.", hint=HOW_TO_SEND)

    def _find(self, key: str) -> Caller | None:
        """Compare with every key, so that the time taken does not depend on the value."""
        digest = _digest(key)
        found: Caller | None = None
        for stored, caller in self._callers:
            if hmac.compare_digest(stored, digest):
                found = caller
        return found


def _stored(key_hash: str) -> bytes:
    return bytes.fromhex(key_hash.removeprefix(HASH_KIND))


def _credential(header: str) -> str:
    """The key in a header's value: the part after "Bearer", or all of it."""
    scheme, _, rest = header.partition(" ")
    return rest.strip() if scheme.lower() == "bearer" else header


# --- where to listen -----------------------------------------------------------------------------------


def check_bind(host: str, keys: Sequence[KeySettings], *, allow_public: bool = False) -> None:
    """Raises ConfigError if other computers could use a server without keys."""
    if keys or allow_public or is_loopback(host):
        return
    raise ConfigError(
        f"host={host!r} can be reached from other computers, and no API key is configured.",
        hint="Create a key with 'foredraft keys new NAME', or listen on 127.0.0.1.",
    )


def check_host_header(
    header: str | None, host: str, keys: Sequence[KeySettings], *, allow_public: bool = False
) -> None:
    """Raises PermissionDeniedError for a request whose Host header is not a name of this computer.

    A web page can make its own domain resolve to 127.0.0.1 (DNS rebinding); the browser then lets the page
    read this server's answers. The `Host` header still names the page's domain. With keys the check is not
    needed.
    """
    if keys or allow_public or not is_loopback(host) or header is None:
        return
    if not is_loopback(without_port(header)):
        raise PermissionDeniedError(
            "This server only answers requests to localhost, but the Host header has another name.",
            hint="Use the address 127.0.0.1. To use another name, configure an API key.",
        )


def without_port(header: str) -> str:
    """The name or address in a `Host` header."""
    name, colon, port = header.strip().rpartition(":")
    # An address such as [::1] contains colons.
    return name if colon and port.isdigit() and not (":" in name and not name.endswith("]")) else header
