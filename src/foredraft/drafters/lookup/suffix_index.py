# cython: language_level=3, annotation_typing=False, initializedcheck=False
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
_REACH = 64  # REACH, for compiled code


class SuffixIndex:
    """A growing text with chains over its k-grams, for each k of `levels` (ascending powers of two).

    Memory is at most 4 + 12 × len(levels) bytes for each token of capacity, which is at most a quarter more
    than the text (or 2,048 tokens) when it is built and whenever it has to grow. Positions count tokens from
    the text's start; a match is named by its *end*, the position of the token that follows it.
    """

    def __init__(self, levels: Sequence[int], text: Tokens | Sequence[int] = ()) -> None:
        self.levels = tuple(levels)
        self._widths = np.array(self.levels, np.int64).data
        self._powers = np.array([pow(_BASE, level, 1 << 64) for level in levels], np.uint64).data
        self._index(np.asarray(text, np.int32))

    def _index(self, text: Tokens) -> None:
        """Start over with room for a quarter more than `text`."""
        size, room = len(text), max(len(text) // 4, _ROOM)
        self.size = size
        """Tokens of the text."""
        self._capacity = size + room
        self._buffer: Tokens = np.full(REACH + size + room + REACH, SEPARATOR, np.int32)
        self._buffer[:REACH] = _LEFT_PAD
        self._buffer[REACH : REACH + size] = text
        self._view = self._buffer.data
        bits = (size + room - 1).bit_length()
        self._shift = 64 - bits
        heads = np.zeros((len(self.levels), 1 << bits), np.int32)
        links = np.zeros((len(self.levels), size + room + 1), np.int32)
        newest: list[int] = []
        for i, (level, hashes) in enumerate(zip(self.levels, _gram_hashes(text, self.levels), strict=True)):
            _chain(heads[i], links[i], hashes, level)
            newest.append(int(hashes[-1]) if len(hashes) else _hash(text.tolist()))
        self._heads, self._links = heads.data, links.data
        self._hashes = np.array(newest, np.uint64).data

    def __len__(self) -> int:
        return self.size

    @property
    def capacity(self) -> int:
        return self._capacity

    @property
    def hashes(self) -> list[int]:
        """Of the text's last tokens, as many as each level has."""
        return [int(value) for value in self._hashes]

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens (or separators)."""
        if self.size + len(tokens) > self._capacity:
            self._index(np.concatenate([self.text(), np.asarray(tokens, np.int32)]))
            return
        for token in tokens:
            self._append(token)

    def _append(self, token: int) -> None:
        at = self.size + _REACH
        end = self.size + 1
        self._view[at] = token
        self.size = end
        for i in range(len(self._widths)):
            width = self._widths[i]
            leaving = self._view[at - width] if end > width else 0
            value = (self._hashes[i] * _BASE + token - leaving * self._powers[i]) & _MASK
            self._hashes[i] = value
            if end >= width:
                bucket = ((value * _MIX) & _MASK) >> self._shift
                self._links[i, end] = self._heads[i, bucket]
                self._heads[i, bucket] = end

    def text(self) -> Tokens:
        """What was appended: a view."""
        return self._buffer[REACH : REACH + self.size]

    def occurrences(self, level: int, text: SuffixIndex, limit: int) -> list[int]:
        """Ends of the newest occurrences of the last `levels[level]` tokens of `text`, newest first, at most
        `limit` looked at.

        `text` may be this one; it has at least so many tokens, and a level of that width. This text's own
        end is left out, and so are nearly all ends that share a bucket with another gram (`lengths` finds
        the rest).
        """
        width = self._widths[level]
        theirs = 0
        while text._widths[theirs] != width:
            theirs += 1
        last = text._view[text.size + _REACH - 1]
        first = text._view[text.size + _REACH - width]
        end = self._heads[level, ((text._hashes[theirs] * _MIX) & _MASK) >> self._shift]
        if end == self.size:  # nothing follows there; in the index of the text itself it is no match at all
            end = self._links[level, end]
        found: list[int] = []
        while end and limit:
            if self._view[end + _REACH - 1] == last and self._view[end + _REACH - width] == first:
                found.append(end)
            end = self._links[level, end]
            limit -= 1
        return found

    def lengths(self, ends: Sequence[int], text: SuffixIndex) -> list[int]:
        """How many tokens before each end equal the last ones of `text`, at most REACH - 1."""
        found: list[int] = []
        last = text.size + _REACH - 1
        for end in ends:
            before, length = end + _REACH - 1, 0
            while length < _REACH - 1 and self._view[before - length] == text._view[last - length]:
                length += 1
            found.append(length)
        return found

    def after(self, end: int, place: int) -> int:
        """The token `place` (< REACH) tokens behind an end, SEPARATOR past the end of the text."""
        return self._view[end + _REACH + place]

    def following(self, end: int) -> Tokens:
        """What followed an end: REACH tokens, SEPARATOR past the end of the text. A view."""
        return self._buffer[end + REACH : end + 2 * REACH]


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
