"""`ngram-mod`: one pool of (hash of the last n tokens → next token), shared by a scope's requests.

As llama.cpp's `ngram-mod`: constant memory, constant time a token, and a draft that follows the pool from
token to token until the next one is unknown. Each entry has its key, so that a hash collision cannot cause a
draft; the stored key includes a secret of the request's scope, so that no text of one scope is proposed in
another. The newest occurrence replaces an older one, and nothing is ever cleared: one request's rejected
drafts do not affect the others.

Memory: 12 bytes for each of 2²⁰ entries, 12 MB in total, used as it fills, whatever the number of requests
and scopes; and two numbers a request.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from foredraft.config import checked_by, read_options
from foredraft.drafters.base import HistoryDrafter
from foredraft.drafters.ngram_index import BASE, MASK, check_range, window_keys
from foredraft.errors import SpeculationStringError
from foredraft.protocols import Drafter, DrafterContext, RequestView
from foredraft.types import Draft, DraftLimit, Outcome

NAME = "ngram-mod"
POOL_BITS = 20
BULK = 256
"""From this many new tokens on numpy is faster than adding them one by one."""


def _read(options: Mapping[str, str]) -> dict[str, Any]:
    values = read_options(NAME, options, {"n": 24, "min": 48, "max": 64})
    check_range(NAME, values, "n", "max")
    if values["min"] > values["max"]:
        raise SpeculationStringError(
            f"{NAME}: min={values['min']} is more than max={values['max']}.",
            hint="Set min=0 to allow drafts of any length.",
        )
    return values


@checked_by(_read)
def create(context: DrafterContext, options: Mapping[str, str]) -> Drafter:  # noqa: ARG001
    """Create the drafter. Options: n (tokens matched), min and max (tokens of a draft; shorter ones are
    dropped).

    Raises SpeculationStringError.
    """
    values = _read(options)
    return NgramMod(values["n"], values["min"], values["max"])


class Scope(NamedTuple):
    """What a scope adds to its keys: `offset` so that the same n-gram in two scopes has two places, `secret`
    (different in each process) in the key that is stored and compared.
    """

    offset: int
    secret: int


class Pool:
    """A table of constant size: the key of an n-gram (hash mod 2⁶⁴) → the token that last followed it."""

    def __init__(self, bits: int = POOL_BITS) -> None:
        self._shift = 64 - bits
        self._keys = np.zeros(1 << bits, dtype=np.uint64)
        self._tokens = np.zeros(1 << bits, dtype=np.int32)
        # Reading single elements through memoryviews takes a third of numpy's time.
        self._key_at = self._keys.data
        self._token_at = self._tokens.data

    def get(self, key: int, scope: Scope) -> int | None:
        """The token that last followed the n-gram `key` in the scope."""
        slot = ((key + scope.offset) & MASK) >> self._shift
        return self._token_at[slot] if self._key_at[slot] == (key + scope.secret) & MASK else None

    def put(self, key: int, scope: Scope, token: int) -> None:
        slot = ((key + scope.offset) & MASK) >> self._shift
        self._key_at[slot] = (key + scope.secret) & MASK
        self._token_at[slot] = token

    def put_all(self, tokens: Sequence[int], n: int, scope: Scope) -> None:
        """Add every n-gram of `tokens` that has a next token; of several in one slot the last one stays."""
        if len(tokens) <= n:
            return
        keys = window_keys(tokens, n)[n - 1 : -1]
        slots = (keys + np.uint64(scope.offset)) >> np.uint64(self._shift)
        self._keys[slots] = keys + np.uint64(scope.secret)
        self._tokens[slots] = np.asarray(tokens[n:], dtype=np.int32)


@dataclass(slots=True)
class Window:
    """How much of a request's history is in the pool, and the key of its last n tokens."""

    size: int
    key: int
    scope: Scope


class NgramMod(HistoryDrafter[Window]):
    """Follows the pool from the history's last `n` tokens on, for at least `shortest` tokens."""

    name = NAME

    def __init__(self, n: int, shortest: int, longest: int, pool: Pool | None = None) -> None:
        super().__init__()
        self.n = n
        self.shortest = shortest
        self.longest = longest
        self._drop = pow(BASE, n + 1, 1 << 64)
        self._pool = pool or Pool()
        self._secret = secrets.token_bytes(32)

    def build(self, request: RequestView) -> Window:
        """Also adds the whole history to the pool, which restores entries that a removed end replaced."""
        tokens = request.tokens
        offset, secret = (
            int.from_bytes(hashlib.blake2b(request.scope.encode(), key=key, digest_size=8).digest(), "little")
            for key in (b"", self._secret)
        )
        scope = Scope(offset, secret)
        self._pool.put_all(tokens, self.n, scope)
        key = int(window_keys(tokens[-self.n :], self.n)[-1]) if tokens else 0
        return Window(len(tokens), key, scope)

    def extend(self, state: Window, request: RequestView, outcome: Outcome) -> None:
        tokens, n = request.tokens, self.n
        if len(outcome.tokens) > BULK:
            self._pool.put_all(tokens[max(0, outcome.kept - n) :], n, state.scope)
            state.size, state.key = len(tokens), int(window_keys(tokens[-n:], n)[-1])
            return
        key = state.key
        for position in range(state.size, len(tokens)):
            token = tokens[position]
            rolled = (key + token + 1) * BASE
            if position >= n:
                self._pool.put(key, state.scope, token)
                rolled -= (tokens[position - n] + 1) * self._drop
            key = rolled & MASK
        state.size, state.key = len(tokens), key

    def propose(self, state: Window, request: RequestView, limit: DraftLimit) -> Draft | None:
        n, key, scope, drop, get = self.n, state.key, state.scope, self._drop, self._pool.get
        if state.size < n:
            return None
        most = min(self.longest, limit.max_tokens)
        window = request.tokens[-n:]
        for step in range(most):
            token = get(key, scope)
            if token is None:
                break
            key = ((key + token + 1) * BASE - (window[step] + 1) * drop) & MASK
            window.append(token)
        drafted = tuple(window[n:])
        # A limit below `shortest` is the planner's choice and does not mean that the match is poor.
        if not drafted or len(drafted) < min(self.shortest, most):
            return None
        # The pool only keeps the latest occurrence, so the count is always one.
        return Draft(drafted, NAME, features={"match_length": n, "count": 1})

    def size(self, state: Window) -> int:
        return state.size
