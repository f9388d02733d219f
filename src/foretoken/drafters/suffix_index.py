"""Where the last tokens of a text occurred before: hash chains over k-grams, newest first.

The structure is LZ77's as zlib builds it (Deutsch, RFC 1951 §4), over tokens and at several gram lengths: a
table maps the hash of a k-gram to the newest position where one ends, and each position links to the one
before it in the same bucket. It answers suffix matching's question (which earlier positions share the longest
suffix with the end of the text?) without a suffix tree: an insertion costs a fixed few operations, and a
100,000-token text is indexed by a handful of numpy calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Tokens: TypeAlias = npt.NDArray[np.int32]

REACH = 64
"""Tokens that are compared to the left of a match and returned to the right of it."""

SEPARATOR = -1
"""Not a token: never matches one and ends a continuation. Fills the space after the text."""

_LEFT_PAD = -2  # before the text; other than SEPARATOR, so that padding never matches a separator
_MASK = (1 << 64) - 1
_BASE = 0x9E3779B97F4A7C15  # odd and without structure; any such number makes a polynomial hash mod 2^64
_MIX = 0xD6E8FEB86659FD93
_ROOM = 2048  # tokens of capacity that an index begins with
_STRIDE = 8  # tokens that are compared at once


class SuffixIndex:
    """A growing text with chains over its k-grams, for each k of `levels` (ascending powers of two).

    Memory is at most 4 + 12 × len(levels) bytes for each token of capacity, which is at most a quarter more
    than the text (or 2,048 tokens) when it is built and whenever it has to grow. Positions count tokens from
    the text's start; a match is named by its *end*, the position of the token that follows it.
    """

    def __init__(self, levels: Sequence[int], text: Tokens | Sequence[int] = ()) -> None:
        self.levels = tuple(levels)
        self._powers = [pow(_BASE, level, 1 << 64) for level in self.levels]
        self._index(np.asarray(text, np.int32))

    def _index(self, text: Tokens) -> None:
        """Start over with room for a quarter more than `text`."""
        size, room = len(text), max(len(text) // 4, _ROOM)
        self._size = size
        self._capacity = size + room
        self._buffer: Tokens = np.full(REACH + size + room + REACH, SEPARATOR, np.int32)
        self._buffer[:REACH] = _LEFT_PAD
        self._buffer[REACH : REACH + size] = text
        self._view = memoryview(self._buffer.data)
        bits = (size + room - 1).bit_length()
        self._shift = 64 - bits
        self._heads: list[memoryview] = []
        self._links: list[memoryview] = []
        self.hashes: list[int] = []
        for level, hashes in zip(self.levels, _gram_hashes(text, self.levels), strict=True):
            heads, links = np.zeros(1 << bits, np.int32), np.zeros(size + room + 1, np.int32)
            _chain(heads, links, hashes, level)
            self._heads.append(memoryview(heads.data))
            self._links.append(memoryview(links.data))
            self.hashes.append(int(hashes[-1]) if len(hashes) else _hash(text.tolist()))

    def __len__(self) -> int:
        return self._size

    @property
    def capacity(self) -> int:
        return self._capacity

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens (or separators)."""
        if self._size + len(tokens) > self._capacity:
            self._index(np.concatenate([self.text(), np.asarray(tokens, np.int32)]))
            return
        view, hashes, shift = self._view, self.hashes, self._shift
        for token in tokens:
            at = self._size + REACH
            view[at] = token
            self._size = end = self._size + 1
            for i, level in enumerate(self.levels):
                leaving = view[at - level] if end > level else 0
                value = (hashes[i] * _BASE + token - leaving * self._powers[i]) & _MASK
                hashes[i] = value
                if end >= level:
                    bucket = ((value * _MIX) & _MASK) >> shift
                    head = self._heads[i]
                    self._links[i][end] = head[bucket]
                    head[bucket] = end

    def text(self) -> Tokens:
        """What was appended: a view."""
        return self._buffer[REACH : REACH + self._size]

    def tail(self) -> memoryview:
        """The last REACH tokens, padded on the left: what `lengths` compares with."""
        return self._view[self._size : self._size + REACH]

    def occurrences(self, level: int, gram: Sequence[int], hashed: int, limit: int) -> list[int]:
        """Ends of the newest occurrences of a gram, newest first, at most `limit` looked at.

        `gram` is a text's last tokens (at least `levels[level]` of them) and `hashed` its hash, as the
        index of that text has it in `hashes[level]`. This text's own end is left out, and so are nearly
        all ends that share a bucket with another gram (`lengths` finds the rest).
        """
        width = self.levels[level]
        view, link = self._view, self._links[level]
        first, last = gram[-width], gram[-1]
        end = self._heads[level][((hashed * _MIX) & _MASK) >> self._shift]
        if end == self._size:  # nothing follows there; in the index of the text itself it is no match at all
            end = link[end]
        found: list[int] = []
        while end and limit:
            if view[end + REACH - 1] == last and view[end + REACH - width] == first:
                found.append(end)
            end = link[end]
            limit -= 1
        return found

    def lengths(self, ends: Sequence[int], tail: memoryview) -> list[int]:
        """How many tokens before each end equal those before the end of `tail`, at most REACH - 1."""
        view = self._view
        found: list[int] = []
        for end in ends:
            after, length = end + REACH, 0
            while length + _STRIDE < REACH:
                left, right = length + _STRIDE, length
                if view[after - left : after - right] != tail[REACH - left : REACH - right]:
                    break
                length = left
            while length < REACH - 1 and view[after - 1 - length] == tail[REACH - 1 - length]:
                length += 1
            found.append(length)
        return found

    def following(self, end: int) -> memoryview:
        """What followed an end: REACH tokens, SEPARATOR past the end of the text."""
        return self._view[end + REACH : end + 2 * REACH]


def _chain(heads: Tokens, links: Tokens, hashes: npt.NDArray[np.uint64], level: int) -> None:
    """Fill table and links as inserting the grams with these hashes one after another would."""
    if not len(hashes):
        return
    bits = len(heads).bit_length() - 1
    ends = np.arange(level, level + len(hashes), dtype=np.uint64)
    # One sort of (bucket, end) pairs packed in a word puts every bucket's ends in order.
    pairs = ((hashes * np.uint64(_MIX)) >> np.uint64(64 - bits)) << np.uint64(32) | ends
    pairs.sort()
    buckets, ends = pairs >> np.uint64(32), pairs & np.uint64(0xFFFFFFFF)
    same = buckets[1:] == buckets[:-1]
    links[ends[1:][same]] = ends[:-1][same]
    newest = np.append(~same, True)
    heads[buckets[newest]] = ends[newest]


def _hash(tokens: Sequence[int]) -> int:
    value = 0
    for token in tokens:
        value = (value * _BASE + token) & _MASK
    return value


def _gram_hashes(text: Tokens, levels: Sequence[int]) -> list[npt.NDArray[np.uint64]]:
    """For each level the hashes of all grams, in order: Σ token × base^(distance from the gram's end)."""
    width, hashes = 1, text.astype(np.int64).view(np.uint64)
    found: dict[int, npt.NDArray[np.uint64]] = {1: hashes}
    while width < levels[-1]:
        factor = np.uint64(pow(_BASE, width, 1 << 64))
        hashes = hashes[:-width] * factor + hashes[width:]
        width *= 2
        found[width] = hashes
    return [found[level] for level in levels]
