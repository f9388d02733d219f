"""Validation of settings: one function for each kind of value, with an error that names the setting."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from urllib.parse import urlsplit

from foredraft.errors import ConfigError, quoted

NAME_CHARACTERS = 128
LONGEST_S = 1e9
"""Seconds, 30 years: operating systems' clocks and timers cannot take any number."""
_KEY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HASH = re.compile(r"sha256:[0-9a-f]{64}")


def wrong(name: str, value: object, allowed: str) -> ConfigError:
    """The error for an invalid value: the setting, the value, and what is valid."""
    return ConfigError(
        f"{name}={quoted(value)} is not valid.", hint=f"{name} must be {allowed}.", setting=name
    )


def whole(name: str, value: object, low: int, high: int | None = None) -> None:
    """Check a whole number from `low` to `high`, both included. Raises ConfigError."""
    fits = isinstance(value, int) and not isinstance(value, bool)
    if fits and isinstance(value, int) and low <= value and (high is None or value <= high):
        return
    bounds = f", at least {low}" if high is None else f" from {low} to {high}"
    raise wrong(name, value, f"a whole number{bounds}")


def seconds(name: str, value: object, most: float = LONGEST_S) -> None:
    """Check a number of seconds above 0. Raises ConfigError."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= most:
        return
    raise wrong(name, value, f"a number of seconds above 0, at most {most:.0f}")


def switch(name: str, value: object) -> None:
    """Check a boolean. Raises ConfigError."""
    if not isinstance(value, bool):
        raise wrong(name, value, "true or false")


def choice(name: str, value: object, valid: Iterable[str]) -> None:
    """Check one of several words. Raises ConfigError."""
    valid = tuple(valid)
    if not isinstance(value, str) or value not in valid:
        raise wrong(name, value, "one of " + ", ".join(map(repr, valid)))


def text(name: str, value: object) -> None:
    """Check a non-empty string that can be a path or an address. Raises ConfigError."""
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise wrong(name, value, "a non-empty string")


def model_name(name: str, value: object) -> None:
    """Check a name that clients send as `model`, also as the end of an address. Raises ConfigError."""
    fits = isinstance(value, str) and 0 < len(value) <= NAME_CHARACTERS and value.isprintable()
    if not fits or any(map(str.isspace, str(value))):
        raise wrong(name, value, f"1 to {NAME_CHARACTERS} printable characters without spaces")
    if str(value) in (".", "..") or str(value).endswith("/"):
        raise wrong(
            name, value, "a name that can end an address: not '.' or '..', and without a '/' at its end"
        )


def key_name(name: str, value: object) -> None:
    """Check the name of an API key, which appears in logs and metrics. Raises ConfigError."""
    if not isinstance(value, str) or not _KEY_NAME.fullmatch(value):
        raise wrong(name, value, "1 to 64 letters, digits, '.', '_' and '-', starting with a letter or digit")


def scope(name: str, value: object) -> None:
    """Check the name of a scope; "" is the store that `foredraft run` uses. Raises ConfigError."""
    if not isinstance(value, str) or len(value) > NAME_CHARACTERS or not value.isprintable():
        raise wrong(name, value, f"a string of at most {NAME_CHARACTERS} printable characters")


def key_hash(name: str, value: object) -> None:
    """Check the hash of a key. Raises ConfigError without the value, which may be the key itself."""
    if not isinstance(value, str) or not _HASH.fullmatch(value):
        raise ConfigError(
            f"{name} is not the hash of an API key.",
            hint=f"{name} must be 'sha256:' and 64 hexadecimal digits. 'foredraft keys new' creates one.",
            setting=name,
        )


def origin(name: str, value: object) -> None:
    """Check a web origin as browsers send it (scheme, host and port only), or "*". Raises ConfigError."""
    if value == "*" or (isinstance(value, str) and _is_origin(value)):
        return
    raise wrong(name, value, "'*' or an origin such as 'https://chat.example.org', without a path")


def _is_origin(value: str) -> bool:
    try:
        parts = urlsplit(value)
        _ = parts.port
    except ValueError:
        return False
    # Browsers send origins in lower case, and they are compared as strings.
    return bool(parts.hostname) and value == f"{parts.scheme}://{parts.netloc}".lower() and "@" not in value


def is_loopback(host: str) -> bool:
    """Whether only this computer can reach the address. Any name but localhost may resolve to anything."""
    name = host.strip().removeprefix("[").removesuffix("]").rstrip(".").lower()
    if name == "localhost":
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
