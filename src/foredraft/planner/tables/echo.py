# cython: language_level=3, annotation_typing=False, initializedcheck=False
"""How much of a text's end stood in it before: a hint, after every token, whether asking for a draft may pay.

A drafter that copies says the same and better, but asking it takes some tenths of a millisecond between two
forwards. This takes a few microseconds: where the last two tokens came last is looked up, how much before
them is the same is counted once, and from then on every token that comes as it came there makes the match
longer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from foredraft.protocols import RequestView

WIDTH = 2
"""Tokens that are looked up. In recorded answers the newest place of two tokens is the longest match, or one
as long, in 98 of 100 cases."""

LONGEST = 48
"""Tokens up to which a new match is measured."""

BULK = 64
"""From this many unread tokens on numpy is faster than reading them one by one."""

_FIRST = 0x9E3779B1
_SECOND = 0x2C1B3C6D
_BITS = 30
"""Of a hash: what is multiplied on the way to it stays under 2^62, which compiled code has in a register."""

_MASK = (1 << _BITS) - 1
_LEAST_BITS = 10
_WIDTH, _LONGEST, _BULK = WIDTH, LONGEST, BULK  # for compiled code


class _Text:
    """What is known of one request's text. `places[slot of two tokens]`: the position after their last
    occurrence, 0 for none; two pairs in one slot are told apart by looking. `at`: the position that is
    expected to come again, `length` how many tokens before it and before the text's end are the same. It has
    room for `most` tokens.
    """

    def __init__(self, bits: int) -> None:
        self.places: npt.NDArray[np.int32] = np.zeros(1 << bits, np.int32)
        self.cells = self.places.data
        self.shift = _BITS - bits
        self.most = 1 << (bits - 1)
        self.read = self.at = self.length = 0


class Echo:
    """The texts of all requests. Memory: 8 to 16 bytes a token."""

    def __init__(self) -> None:
        self._texts: dict[int, _Text] = {}

    def expected(self, request: RequestView) -> int:
        """The place in the text that goes on as its end is expected to, since `length` was asked last."""
        text = self._texts[request.id]
        return text.at

    def length(self, request: RequestView) -> int:
        """How many tokens the text's end has in common with what came before an earlier place in it; 0 if
        not even two. A text of which a part was removed is read anew.
        """
        tokens = request.tokens
        count, text = len(tokens), self._texts.get(request.id)
        if text is None or count < text.read or count > text.most:
            text = self._texts[request.id] = _read(tokens)
        elif count - text.read > _BULK:
            _read_on(text, tokens)
        else:
            for end in range(text.read + 1, count + 1):
                _step(text, tokens, end)
        return text.length

    def noted(self, request: int) -> tuple[int, int]:
        """How many tokens of a request's text were read, and the `length` that was found then; 0 and 0 of one
        that was never looked at.
        """
        text = self._texts.get(request)
        if text is None:
            return 0, 0
        return text.read, text.length

    def forget(self, request: int) -> None:
        """The request is over."""
        self._texts.pop(request, None)


def _read(tokens: Sequence[int]) -> _Text:
    text = _Text(min(max(_LEAST_BITS, (4 * len(tokens)).bit_length()), _BITS))
    _read_on(text, tokens)
    return text


def _read_on(text: _Text, tokens: Sequence[int]) -> None:
    """Read what was not read yet, all but the last token at once."""
    first = max(0, text.read - 1)
    ids = np.asarray(tokens[first:-1], np.int64).astype(np.uint64)
    if len(ids) > 1:
        mixed = (ids[:-1] * np.uint64(_FIRST) + ids[1:] & np.uint64(_MASK)) * np.uint64(_SECOND)
        slots = (mixed & np.uint64(_MASK)) >> np.uint64(text.shift)
        text.places[slots] = np.arange(first + WIDTH, first + len(ids) + 1, dtype=np.int32)
    text.at = text.length = 0
    text.read = max(0, len(tokens) - 1)
    if tokens:
        _step(text, tokens, len(tokens))


def _step(text: _Text, tokens: Sequence[int], end: int) -> None:
    """Read the token before position `end`."""
    text.read = end
    last = tokens[end - 1]
    if text.at and tokens[text.at] == last:
        text.at += 1
        text.length += 1
    else:
        text.at = text.length = 0
    if end >= _WIDTH:
        _note(text, tokens, end)


def _note(text: _Text, tokens: Sequence[int], end: int) -> None:
    """Note the two tokens before position `end`, and find where they came before, unless a match goes on."""
    last = tokens[end - 1]
    before = tokens[end - 2]
    slot = ((before * _FIRST + last & _MASK) * _SECOND & _MASK) >> text.shift
    place = text.cells[slot]
    text.cells[slot] = end
    if not text.at and 0 < place < end:
        length = _common(tokens, place, end)
        if length >= _WIDTH:
            text.at, text.length = place, length


def _common(tokens: Sequence[int], place: int, end: int) -> int:
    """How many tokens before two positions are the same, at most `LONGEST`."""
    most = min(place, _LONGEST)
    for length in range(most):
        if tokens[place - 1 - length] != tokens[end - 1 - length]:
            return length
    return most
