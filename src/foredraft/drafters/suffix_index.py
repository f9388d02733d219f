"""Index of the earlier occurrences of a text's end: chains over its k-grams, newest occurrence first.

The structure is LZ77's as zlib builds it (Deutsch, RFC 1951 §4), over tokens and at several gram lengths: a
table maps the hash of a k-gram to the newest position where one ends, and each position links to the one
before it in the same bucket. It finds the earlier positions that share the longest suffix with the end of the
text, without a suffix tree and without an object for each gram: an insertion takes half a microsecond a
level, and a long text is indexed in bulk by a handful of numpy calls.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import compress, count
from operator import ne
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from foredraft.types import MAX_DRAFT_TOKENS

Tokens: TypeAlias = npt.NDArray[np.int32]
Hashes: TypeAlias = npt.NDArray[np.uint64]

REACH = MAX_DRAFT_TOKENS + 1
"""Tokens that are compared to the left of a match and returned to the right of it."""

SEPARATOR = -1
"""Not a token: never matches one and ends a continuation."""

BULK_TOKENS = 256
"""From this many new tokens on numpy is faster than inserting them one by one."""

_MASK = (1 << 64) - 1
_BASE = 0x9E3779B97F4A7C15  # odd and without structure; any such number makes a polynomial hash mod 2^64
_MIX = 0xD6E8FEB86659FD93
_LEAST_ROOM = 2048  # tokens
_LOOKED_AT = 8
"""Maximum entries of a bucket to look at for an earlier occurrence of a gram; mostly it is the first."""


class SuffixIndex:
    """A growing text with chains over its k-grams, for each k of `levels` (ascending powers of two, at most
    REACH).

    Memory: 4 + 12 × len(levels) bytes for each token of capacity at most. The capacity is a quarter more
    than the text, at least 2,048 tokens more, when the index is made and whenever it is made anew to grow.
    Positions count tokens from the text's start; a match is named by its *end*, the position of the token
    that follows.
    """

    def __init__(self, levels: Sequence[int], text: Tokens | Sequence[int] = ()) -> None:
        self.levels = tuple(levels)
        self.text = array("i")
        self.capacity = 0
        self._separated = False
        self.extend(text)

    def __len__(self) -> int:
        return len(self.text)

    @property
    def hashes(self) -> list[int]:
        """Hashes of the text's last tokens, one for each level's length."""
        return [chain.hash for chain in self._chains]

    def extend(self, tokens: Tokens | Sequence[int]) -> None:
        """Append tokens (or separators)."""
        start = len(self.text)
        size = start + len(tokens)
        self._separated = self._separated or SEPARATOR in tokens
        if size - start < BULK_TOKENS:
            self.text.extend(tokens)
        else:
            self.text.frombytes(np.asarray(tokens, np.int32).tobytes())
        if size > self.capacity or not self.capacity:
            start, self.capacity = 0, size + max(size // 4, _LEAST_ROOM)
            self._chains = [_Chain(width, self.capacity) for width in self.levels]
        if size - start < BULK_TOKENS:
            for chain in self._chains:
                chain.extend(self.text, start)
        else:
            first = max(0, start + 1 - self.levels[-1])
            grams = _gram_hashes(np.array(self.text[first:], np.int32), self.levels)
            for chain, hashes in zip(self._chains, grams, strict=True):
                chain.extend_in_bulk(self.text, start, hashes)

    def occurrences(self, level: int, text: SuffixIndex, limit: int) -> list[int]:
        """Ends of the newest occurrences of the last `levels[level]` tokens of `text`, newest first, at most
        `limit` looked at.

        `text` may be this one; it is not shorter than that, and has a level of that width. This text's own
        end is left out, and so are nearly all ends that share a bucket with another gram (`common` finds
        the rest).
        """
        chain, width, own = self._chains[level], self.levels[level], self.text
        theirs = text._chains[text.levels.index(width)]
        last, first = text.text[-1], text.text[-width]
        end = chain.newest(theirs.hash)
        if end == len(own):  # nothing follows there; in the index of the text itself it is no match at all
            end = chain.links[end]
        found: list[int] = []
        while end and limit:
            if own[end - 1] == last and own[end - width] == first:
                found.append(end)
            end = chain.links[end]
            limit -= 1
        return found

    def before(self, end: int, level: int) -> int:
        """The newest earlier end of the gram of `levels[level]` tokens that ends at `end`; 0 if there is none
        among those that are looked at.
        """
        links, width, text = self._chains[level].links, self.levels[level], self.text
        gram, place = text[end - width : end], links[end]
        for _ in range(_LOOKED_AT):
            if not place or text[place - width : place] == gram:
                return place
            place = links[place]
        return 0

    def common(self, end: int, tail: array[int], short: int = 0) -> int:
        """The number of tokens before an end that equal those of `tail`, which has the nearest first. It is
        found faster if it is less than `short`.
        """
        text = self.text
        for length in range(min(short, end, len(tail))):
            if text[end - 1 - length] != tail[length]:
                return length
        return common_prefix(self.text[max(0, end - len(tail)) : end][::-1], tail)

    def tail(self, most: int = REACH - 1) -> array[int]:
        """The text's last tokens, the last one first."""
        return self.text[-most:][::-1]

    def following(self, end: int) -> array[int]:
        """The tokens after an end: at most REACH, up to a separator or the end of the text."""
        row = self.text[end : end + REACH]
        return row[: row.index(SEPARATOR)] if self._separated and SEPARATOR in row else row


class _Chain:
    """The grams of one width. `newest` of a hash is the newest end in its bucket, and `links[end]` the one
    before it there; 0 is none. `hash` is that of the text's last tokens, or of all while there are fewer.
    """

    def __init__(self, width: int, capacity: int) -> None:
        bits = (capacity - 1).bit_length()
        self.width = width
        self.hash = 0
        self.links = array("i", [0])
        self._heads = array("i", bytes(4 << bits))
        self._shift = 64 - bits
        self._power = pow(_BASE, width, 1 << 64)

    def newest(self, value: int) -> int:
        return self._heads[(value * _MIX & _MASK) >> self._shift]

    def extend(self, text: array[int], start: int) -> None:
        """Insert the grams that end behind `start`, one by one."""
        width, value, power, shift = self.width, self.hash, self._power, self._shift
        links, heads = self.links, self._heads
        for end in range(start + 1, len(text) + 1):
            value = value * _BASE + text[end - 1]
            if end > width:
                value -= text[end - 1 - width] * power
            value &= _MASK
            if end < width:
                links.append(0)
                continue
            bucket = (value * _MIX & _MASK) >> shift
            links.append(heads[bucket])
            heads[bucket] = end
        self.hash = value

    def extend_in_bulk(self, text: array[int], start: int, hashes: Hashes) -> None:
        """The same at once. `hashes` are those of the last grams of the text, up to its end."""
        size, width = len(text), self.width
        first = max(start + 1, width)  # the first end that a gram has
        # One sort of (bucket, end) pairs packed in a word puts every bucket's ends in order.
        pairs = hashes[first - size - 1 :] * np.uint64(_MIX) >> np.uint64(self._shift) << np.uint64(32)
        pairs |= np.arange(first, size + 1, dtype=np.uint64)
        pairs.sort()
        buckets, ends = pairs >> np.uint64(32), (pairs & np.uint64(0xFFFFFFFF)).astype(np.int32)
        heads = np.frombuffer(self._heads, np.int32)
        opens = np.append(True, buckets[1:] != buckets[:-1])
        earlier = np.where(opens, heads[buckets], np.append(np.int32(0), ends[:-1]))
        links = np.zeros(size - start, np.int32)
        links[ends - start - 1] = earlier
        closes = np.append(opens[1:], True)
        heads[buckets[closes]] = ends[closes]
        self.links.frombytes(links.tobytes())
        self.hash = int(hashes[-1])


def common_prefix(one: array[int], other: array[int]) -> int:
    """The number of leading tokens that both share."""
    size = min(len(one), len(other))
    if one[:size] == other[:size]:
        return size
    return next(compress(count(), map(ne, one, other)))


def _gram_hashes(text: Tokens, levels: Sequence[int]) -> list[Hashes]:
    """For each level the hashes of all grams, in order: Σ token × base^(distance from the gram's end)."""
    width, hashes = 1, text.astype(np.int64).view(np.uint64)
    found: dict[int, Hashes] = {1: hashes}
    while width < levels[-1]:
        factor = np.uint64(pow(_BASE, width, 1 << 64))
        hashes = hashes[:-width] * factor + hashes[width:]
        width *= 2
        found[width] = hashes
    return [found[level] for level in levels]
