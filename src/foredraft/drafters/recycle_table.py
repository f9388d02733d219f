"""The table of `recycle`: the tokens that followed one token, or two, newest first.

One table of constant size serves all scopes. A context (the last token, or the last two) is hashed to a row;
the row contains its key, so that collisions are detected, and the key includes a secret of the scope, so that
no scope gets successors learned from another's text (scope_key.py). Of two contexts in one row the newer
stays.

A row also stores how often in a row its first token followed, and the request that wrote it last.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from foredraft.drafters.scope_key import ScopeKey

MAX_BYTES = 8_000_000
MOST_COUNTED = 7

_MASK = (1 << 64) - 1
_PAIR = 0x9E3779B97F4A7C15
_SINGLE = 0xD6E8FEB86659FD93
"""Odd numbers without structure. The key of (a, b) is ((a + 1)·PAIR + b + 1)·SINGLE; a is -1 for b alone."""

_EMPTY = -1
_REQUEST = 3  # of a row's note: from this bit on the request, below it how often the first token followed
_REQUESTS = (1 << (31 - _REQUEST)) - 1

Ids = npt.NDArray[np.int32]
Keys = npt.NDArray[np.uint64]


class Row(NamedTuple):
    """The entry of a context. `tokens`: what followed it, newest first. `times`: how often in a row the first
    one followed, 1 to MOST_COUNTED. `own`: the same request wrote it last.
    """

    tokens: list[int]
    times: int
    own: bool


class SuccessorTable:
    """`k` successors for each of a power of two of contexts. Memory: 12 + 4k bytes a row, at most
    `max_bytes`, used as it fills.

    `request` is a number that identifies the writing request; only its lowest 28 bits count.
    """

    def __init__(self, k: int, max_bytes: int = MAX_BYTES) -> None:
        self.k = k
        bits = (max_bytes // (12 + 4 * k)).bit_length() - 1
        self.rows = 1 << bits
        self._shift = 64 - bits
        self._key_array: Keys = np.zeros(self.rows, np.uint64)
        self._note_array: Ids = np.zeros(self.rows, np.int32)
        self._cell_array: Ids = np.zeros((self.rows, k), np.int32)
        # Reading single elements through memoryviews takes a third of numpy's time.
        self._keys = self._key_array.data
        self._notes = self._note_array.data
        self._cells = self._cell_array.reshape(-1).data

    @property
    def nbytes(self) -> int:
        """The memory of a full table, in bytes."""
        return int(self._key_array.nbytes + self._note_array.nbytes + self._cell_array.nbytes)

    def find(self, before: int, last: int, scope: ScopeKey, request: int) -> Row | None:
        """The entry of the last two tokens or, with `before` = -1, of the last one."""
        slot, key = self._place(before, last, scope)
        if self._keys[slot] != key:
            return None
        note = self._notes[slot]
        tokens = [token for token in self._read(slot) if token != _EMPTY]
        return Row(tokens, note & MOST_COUNTED, note >> _REQUEST == request & _REQUESTS)

    def follow(self, text: Sequence[int], start: int, scope: ScopeKey, request: int) -> None:
        """Learn the successors in `text` from position `start` on, one by one."""
        for position in range(max(1, start), len(text)):
            last, token = text[position - 1], text[position]
            self._follow(-1, last, token, scope, request)
            if position > 1:
                self._follow(text[position - 2], last, token, scope, request)

    def _follow(self, before: int, last: int, token: int, scope: ScopeKey, request: int) -> None:
        slot, key = self._place(before, last, scope)
        row, times = [_EMPTY] * self.k, 0
        if self._keys[slot] == key:
            row = self._read(slot)
            if row[0] == token:
                times = min(self._notes[slot] & MOST_COUNTED, MOST_COUNTED - 1)
            del row[row.index(token) if token in row else self.k - 1]
            row.insert(0, token)
        else:
            self._keys[slot] = key
            row[0] = token
        self._write(slot, row)
        self._notes[slot] = (request & _REQUESTS) << _REQUEST | times + 1

    def _place(self, before: int, last: int, scope: ScopeKey) -> tuple[int, int]:
        """The row of a context, and the key that identifies the context there."""
        key = ((before + 1) * _PAIR + last + 1) * _SINGLE
        return (key + scope.offset & _MASK) >> self._shift, key + scope.secret & _MASK

    def _read(self, slot: int) -> list[int]:
        return self._cells[slot * self.k : (slot + 1) * self.k].tolist()

    def _write(self, slot: int, row: list[int]) -> None:
        self._cells[slot * self.k : (slot + 1) * self.k] = array("i", row)

    def follow_all(self, text: Sequence[int], scope: ScopeKey, request: int) -> None:
        """Learn a whole text at once. As `follow`, but a context's count restarts: the text may have been
        read before, as a conversation is at each of its turns.
        """
        tokens = np.asarray(text, np.int64)
        if len(tokens) < 2:
            return
        ids = (tokens + 1).astype(np.uint64)
        pairs = ids[:-2] * np.uint64(_PAIR) + ids[1:-1]
        # Both kinds of contexts at once: for a prompt the calls take the time, not the tokens.
        keys = np.concatenate([ids[:-1], pairs]) * np.uint64(_SINGLE)
        self._follow_all(keys, np.concatenate([tokens[1:], tokens[2:]]), scope, request)

    def _follow_all(self, keys: Keys, tokens: npt.NDArray[np.int64], scope: ScopeKey, request: int) -> None:
        contexts, newest, times = _latest(keys, tokens, self.k)
        # In two steps: a table of one row shifts by all 64 bits, which numpy does not define.
        slots = (contexts + np.uint64(scope.offset)) >> np.uint64(1) >> np.uint64(self._shift - 1)
        stored = contexts + np.uint64(scope.secret)
        same = self._key_array[slots] == stored
        old = np.where(same[:, None], self._cell_array[slots], np.int32(_EMPTY))
        repeated = (old[:, :, None] == newest[:, None, :]).any(axis=2)
        old[repeated] = _EMPTY
        merged = np.concatenate([newest, old], axis=1)
        order = np.argsort(merged == _EMPTY, axis=1, kind="stable")[:, : self.k]
        self._key_array[slots] = stored
        self._cell_array[slots] = np.take_along_axis(merged, order, axis=1)
        self._note_array[slots] = (request & _REQUESTS) << _REQUEST | np.minimum(times, MOST_COUNTED)


def _latest(keys: Keys, tokens: npt.NDArray[np.int64], k: int) -> tuple[Keys, Ids, npt.NDArray[np.int64]]:
    """For each distinct key the last `k` different tokens that came with it, newest first, shape (keys, k)
    and `_EMPTY` where there are fewer, and how often in a row the newest came last.
    """
    order = np.argsort(keys, kind="stable")
    keys, tokens = keys[order], tokens[order]
    starts = np.append(True, keys[1:] != keys[:-1])
    # Runs of one token under one key, in the order of the text.
    begins = np.flatnonzero(starts | np.append(True, tokens[1:] != tokens[:-1]))
    lengths = np.diff(np.append(begins, len(keys)))
    group = (np.cumsum(starts) - 1)[begins]
    # Of several runs of a token only the last counts: reversed, it is the one that `unique` reports.
    labels = group * (int(tokens.max()) + 1) + tokens[begins]
    last = np.sort(len(begins) - 1 - np.unique(labels[::-1], return_index=True)[1])
    ends = np.append(np.flatnonzero(np.diff(group[last])), len(last) - 1)
    age = ends[group[last]] - np.arange(len(last))
    kept = age < k
    contexts = keys[starts]
    newest: Ids = np.full((len(contexts), k), _EMPTY, np.int32)
    newest[group[last][kept], age[kept]] = tokens[begins][last][kept]
    return contexts, newest, lengths[last[ends]]
