"""Keys that separate scopes in one shared hash table.

A key locates an entry and proves that it is the right one. Each scope shifts both parts: the slot by a hash
of its name, so that scopes use different slots, and the stored key by a secret that is drawn in each process.
A lookup matches another scope's entry once in 2⁶⁴ times.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import NamedTuple

MASK = (1 << 64) - 1


class ScopeKey(NamedTuple):
    """A scope's additions, modulo 2⁶⁴, to the key that finds a slot and to the key that is stored."""

    offset: int
    secret: int


class ScopeKeys:
    """Derives the keys of scopes from a secret of its own."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)

    def of(self, scope: str) -> ScopeKey:
        """The key of a scope: always the same for one scope, unrelated for any other."""
        return ScopeKey(_hash(scope, b""), _hash(scope, self._secret))


def _hash(scope: str, key: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(scope.encode(), key=key, digest_size=8).digest(), "little")
