"""How one table serves many scopes without telling one what another has taught it.

A hash table's key says where an entry is and proves that it is the right one. Each scope shifts both by
numbers of its own: the place by a hash of its name, so that scopes do not crowd the same places, the stored
key by a secret that is drawn anew in each process. An entry of another scope then has a key that a lookup
matches once in 2⁶⁴ times.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import NamedTuple

MASK = (1 << 64) - 1


class ScopeKey(NamedTuple):
    """What a scope adds, modulo 2⁶⁴, to the key that finds a place and to the key that is stored."""

    offset: int
    secret: int


class ScopeKeys:
    """Makes the keys of scopes, with a secret of its own."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)

    def of(self, scope: str) -> ScopeKey:
        """The same for the same scope, unrelated for any other."""
        return ScopeKey(_hash(scope, b""), _hash(scope, self._secret))


def _hash(scope: str, key: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(scope.encode(), key=key, digest_size=8).digest(), "little")
