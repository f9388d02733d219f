"""Counts of next tokens after n-grams, in sorted arrays and in a file: `ngram-cache`'s lower levels.

A pair (n-gram, next token) is one 64-bit number: the upper 44 bits of the n-gram's key
(`ngram_index.window_keys`), then 20 bits of token. In sorted order the pairs of an n-gram are adjacent.
Collisions of the 44 bits are rare (in a full dynamic table one in 30 million lookups of unknown n-grams), and
only cause a wrong draft.

File, little-endian: a header (`HEADER`: magic, version, kind, number of pairs, secret, digest of the
vocabulary, checksum of everything else), then all pairs (u64), then all counts (u32). At most `STATIC_PAIRS`
pairs, 50 MB. Written atomically with mode 0600.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
import tempfile
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from foredraft.drafters.ngram_index import Keys, window_keys
from foredraft.errors import ConfigError

TOKEN_BITS = 20
TOKENS = 1 << TOKEN_BITS
"""Token ids are below this; the largest vocabularies in use have a quarter of it."""

DYNAMIC_PAIRS = 1 << 19
STATIC_PAIRS = 1 << 22
STATIC_N = 2
"""The static level counts the tokens after two tokens (llama.cpp's LLAMA_NGRAM_STATIC)."""

TOP = 16
"""Maximum next tokens that a lookup returns, so that frequent n-grams take no longer than others."""

REMEMBERED = 1024
"""Lookups of frequent n-grams that a table caches, about 2 KB each."""

CHUNK = 1 << 20
"""Tokens counted at once while building a static table."""

MAGIC = b"FTNGRAM\0"
VERSION = 1
STATIC, DYNAMIC = 1, 2
HEADER = struct.Struct("<8sHHQ16s16s16s")
PAIR_BYTES = 12


class CountTable:
    """(n-gram, next token) → count: 12 bytes a pair, at most `limit` pairs; rare old ones are dropped."""

    def __init__(self, limit: int, pairs: Keys | None = None, counts: npt.NDArray[np.uint32] | None = None):
        self.limit = limit
        self.pairs = np.zeros(0, dtype=np.uint64) if pairs is None else pairs
        self.counts = np.zeros(0, dtype=np.uint32) if counts is None else counts
        self._view()

    def __len__(self) -> int:
        return len(self.pairs)

    def _view(self) -> None:
        # bisect and element access are several times faster on a memoryview than on a numpy array.
        self._pair_at = self.pairs.data
        self._count_at = self.counts.data
        self._frequent: dict[int, tuple[dict[int, int], int]] = {}

    def lookup(self, key: int) -> tuple[dict[int, int], int]:
        """The most frequent next tokens (at most `TOP`) after an n-gram with their counts, and the sum of all
        its counts. ({}, 0) for an unknown n-gram.
        """
        low = key >> TOKEN_BITS << TOKEN_BITS
        if low in self._frequent:
            return self._frequent[low]
        start = bisect_left(self._pair_at, low)
        end = bisect_left(self._pair_at, low + TOKENS, start)
        if end - start > TOP:
            return self._lookup_frequent(low, start, end)
        found = {self._pair_at[place] & (TOKENS - 1): self._count_at[place] for place in range(start, end)}
        return found, sum(found.values())

    def _lookup_frequent(self, low: int, start: int, end: int) -> tuple[dict[int, int], int]:
        """The same for an n-gram with many different next tokens; cached, since such n-grams are frequent."""
        counts = self.counts[start:end]
        places = (start + np.argpartition(counts, -TOP)[-TOP:]).tolist()
        found = {self._pair_at[place] & (TOKENS - 1): self._count_at[place] for place in places}
        if len(self._frequent) >= REMEMBERED:
            self._frequent.clear()
        self._frequent[low] = found, int(counts.sum())
        return self._frequent[low]

    def add(self, pairs: Keys) -> None:
        """Count `pairs`, in any order and with repeats."""
        if not len(pairs):
            return
        new, times = np.unique(pairs, return_counts=True)
        at = np.searchsorted(self.pairs, new)
        known = np.zeros(len(new), dtype=bool)
        inside = at < len(self.pairs)
        known[inside] = self.pairs[at[inside]] == new[inside]
        # Summed in 64 bits and limited to the largest count: a saved table may be used for years.
        raised = self.counts[at[known]].astype(np.int64) + times[known]
        counts = self.counts.copy()
        counts[at[known]] = np.minimum(raised, np.iinfo(np.uint32).max)
        fresh = ~known
        self.pairs = np.insert(self.pairs, at[fresh], new[fresh])
        self.counts = np.insert(counts, at[fresh], times[fresh].astype(np.uint32))
        if len(self.pairs) > self.limit:
            self._prune(np.searchsorted(self.pairs, new))
        self._view()

    def _prune(self, latest: npt.NDArray[np.intp]) -> None:
        """Keep 7/8 of `limit`: the most frequent pairs; among equals those counted just now."""
        worth = 2 * self.counts.astype(np.int64)
        worth[latest] += 1
        keep = np.sort(np.argsort(worth, kind="stable")[-(self.limit * 7 // 8) :])
        self.pairs, self.counts = self.pairs[keep], self.counts[keep]


def pairs_of(tokens: Sequence[int], n: int, salt: int, first: int) -> Keys:
    """The pairs (n-gram before a position, token there) for the positions from `first` on, as numbers."""
    first = max(first, n)
    if len(tokens) <= first:
        return np.zeros(0, dtype=np.uint64)
    span = tokens[first - n :]
    keys = window_keys(span, n)[n - 1 : -1] + np.uint64(salt)
    return (keys >> np.uint64(TOKEN_BITS) << np.uint64(TOKEN_BITS)) | np.asarray(span[n:], dtype=np.uint64)


def build_static(token_streams: Iterable[Sequence[int]], path: Path, vocab_hash: str) -> int:
    """Count the tokens after every two tokens of the streams (tokenised texts; no n-gram spans two of them),
    write a static file and return its number of pairs, at most `STATIC_PAIRS` (the most frequent).

    Raises ConfigError for a token id out of range, or if the file cannot be written.
    """
    table = CountTable(STATIC_PAIRS)
    waiting: list[Keys] = []
    for stream in token_streams:
        if any(not 0 <= token < TOKENS for token in stream):
            raise ConfigError(f"A token id is not in 0 … {TOKENS - 1}.", hint="Check the token streams.")
        waiting.append(pairs_of(stream, STATIC_N, 0, 0))
        if sum(map(len, waiting)) >= CHUNK:
            table.add(np.concatenate(waiting))
            waiting.clear()
    if waiting:
        table.add(np.concatenate(waiting))
    try:
        save(Stored(STATIC, table, bytes(16)), path, vocab_hash)
    except OSError as exc:
        raise ConfigError(
            f"Cannot write {path}: {exc}.", hint="Choose a folder with write permission."
        ) from exc
    return len(table)


@dataclass(frozen=True, slots=True)
class Stored:
    """The content of a file. `secret` salts a dynamic table's keys; a static table's are not salted."""

    kind: int
    table: CountTable
    secret: bytes


class UnusableFileError(Exception):
    """The file cannot be used. `replaceable`: it is damaged but of this format; it may be overwritten."""

    def __init__(self, message: str, *, replaceable: bool = False) -> None:
        super().__init__(message)
        self.replaceable = replaceable


def save(stored: Stored, path: Path, vocab_hash: str) -> None:
    """Write the file atomically: a reader sees the old or the new content. Raises OSError."""
    table = stored.table
    payload = table.pairs.astype("<u8").tobytes() + table.counts.astype("<u4").tobytes()
    fields = (MAGIC, VERSION, stored.kind, len(table), stored.secret, _digest(vocab_hash.encode()))
    checksum = _digest(HEADER.pack(*fields, bytes(16)), payload)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=path.name + ".")  # mode 0600
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(HEADER.pack(*fields, checksum))
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def load(path: Path, kind: int, vocab_hash: str, vocab_size: int) -> Stored:
    """Read a file written by `save`. Raises FileNotFoundError and other OSErrors, UnusableFileError."""
    limit = STATIC_PAIRS if kind == STATIC else DYNAMIC_PAIRS
    with path.open("rb") as file:
        head = file.read(HEADER.size)
        if not head.startswith(MAGIC):
            raise UnusableFileError("it is not an n-gram cache of Foredraft")
        # One byte more than the largest file: a longer one is damaged and not read further.
        payload = file.read(limit * PAIR_BYTES + 1)
    if len(head) < HEADER.size:
        raise UnusableFileError("it is truncated", replaceable=True)
    magic, version, found, size, secret, vocabulary, checksum = HEADER.unpack(head)
    if version != VERSION:
        raise UnusableFileError(f"it has version {version} of the format; this is version {VERSION}")
    fields = (magic, version, found, size, secret, vocabulary)
    if len(payload) != size * PAIR_BYTES or _digest(HEADER.pack(*fields, bytes(16)), payload) != checksum:
        raise UnusableFileError("it is damaged", replaceable=True)
    if found != kind:
        raise UnusableFileError("it is a dynamic file" if found == DYNAMIC else "it is a static file")
    if vocabulary != _digest(vocab_hash.encode()):
        raise UnusableFileError("it was made with another vocabulary")
    pairs = np.frombuffer(payload, "<u8", size).astype(np.uint64)
    counts = np.frombuffer(payload, "<u4", size, offset=8 * size).astype(np.uint32)
    if size and int((pairs & np.uint64(TOKENS - 1)).max()) >= vocab_size:
        raise UnusableFileError("it contains tokens that are not in the vocabulary", replaceable=True)
    return Stored(found, CountTable(limit, pairs, counts), secret)


def _digest(*parts: bytes) -> bytes:
    hasher = hashlib.blake2b(digest_size=16)
    for part in parts:
        hasher.update(part)
    return hasher.digest()
