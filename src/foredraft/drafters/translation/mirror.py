"""One request's text in the draft model's tokens, kept in step with the target's tokens.

Tokenised text stays unchanged except for its end: new text may change the last tokens before it ("hel" and
then "lo" may be one token). So a window at the end is tokenised again, and joined to the existing tokens at
the first place, a few tokens into the window, where both have a token boundary: before that, the window's
tokens may only differ because their context is missing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from foredraft.drafters.translation.pieces import Pieces, encode_bytes, unfinished
from foredraft.drafters.translation.vocabulary import VocabularyPair
from foredraft.protocols import Tokenizer

WINDOW = 32
"""Draft tokens that are tokenised again when text is added; four times as many if nothing fits."""
SEAM = 8
"""Tokens at the beginning of the window that are ignored."""
RECENT = 128
"""Recent target tokens over which both tokenisations are compared."""


@dataclass(frozen=True, slots=True)
class _Wall:
    """A target token without text: nothing is merged across it. Counts up to it: target tokens including it,
    draft tokens before and including its replacement, bytes.
    """

    history: int = 0
    before: int = 0
    draft: int = 0
    offset: int = 0


class Mirror:
    """`pieces` are the draft model's tokens of the text. An incomplete character is not part of them: its
    bytes are `pending`.
    """

    def __init__(self, target: Tokenizer, draft: Tokenizer, pair: VocabularyPair) -> None:
        self._target = target
        self._draft = draft
        self._pair = pair
        begin = draft.encode("", add_bos=True)
        self.pieces = Pieces(begin, [0] * len(begin))
        self._walls = [_Wall(draft=len(begin))]
        self._stream = bytearray()
        self._ends: list[int] = []

    def follow(self, history: Sequence[int], kept: int) -> int:
        """Update to `history`, whose first `kept` tokens are unchanged. Returns the number of unchanged draft
        tokens.
        """
        self._rewind(min(kept, len(self._ends), len(history)))
        same = len(self.pieces)
        for token in history[len(self._ends) :]:
            piece = self._target.token_bytes(token)
            self._stream += piece
            self._ends.append(len(self._stream))
            if not piece:
                same = min(same, self._tokenise())
                self._build_wall(token)
        return min(same, self._tokenise())

    @property
    def pending(self) -> bytes:
        """The bytes of an incomplete character at the end of the text."""
        count = unfinished(self.tail(4))
        return bytes(self._stream[len(self._stream) - count :]) if count else b""

    def tail(self, count: int) -> bytes:
        """The last `count` bytes of the text at most, and none before a control token."""
        return bytes(self._stream[max(self._walls[-1].offset, len(self._stream) - count) :])

    def recent(self) -> tuple[float, float]:
        """Share of the target's recent text tokens that the draft model also has and would write there, and
        its number of tokens per target token. Without text: the share of the vocabulary, and 1.
        """
        first = max(0, len(self._ends) - RECENT)
        start = self._ends[first - 1] if first else 0
        ends = self.pieces.ends
        own = ends[bisect_right(ends, start) :]
        spans = set(zip([start, *own], own, strict=False))
        alike = count = 0
        for end in self._ends[first:]:
            count += end > start
            alike += end > start and (start, end) in spans
            start = end
        return (alike / count, len(own) / count) if count else (self._pair.share, 1.0)

    def _rewind(self, kept: int) -> None:
        """Keep the target's first `kept` tokens, and the draft tokens of their text."""
        if kept == len(self._ends):
            return
        del self._ends[kept:]
        del self._stream[self._ends[-1] if self._ends else 0 :]
        while self._walls[-1].history > kept:
            self.pieces.cut(self._walls.pop().before)
        count = bisect_right(self.pieces.ends, len(self._stream))
        self.pieces.cut(max(self._walls[-1].draft, count))

    def _build_wall(self, token: int) -> None:
        before, offset = len(self.pieces), len(self._stream)
        spelled = list(self._pair.control.get(token, ()))
        self.pieces.extend(Pieces(spelled, [offset] * len(spelled)))
        self._walls.append(_Wall(len(self._ends), before, len(self.pieces), offset))

    def _tokenise(self) -> int:
        """Update the end of `pieces` to the text. Returns the number of unchanged tokens."""
        pieces, wall, size = self.pieces, self._walls[-1], WINDOW
        while True:
            first = max(wall.draft, len(pieces) - size)
            start = pieces.ends[first - 1] if first > wall.draft else wall.offset
            fresh = encode_bytes(self._draft, bytes(self._stream[start:]))
            joint = (first, 0) if first == wall.draft else self._joint(first + SEAM, fresh, start)
            if joint is not None:
                break
            size *= 4
        at, taken = joint
        same = at
        for old, new in zip(pieces.tokens[at:], fresh.tokens[taken:], strict=False):
            if old != new:
                break
            same += 1
        pieces.cut(at)
        pieces.extend(fresh, taken, shift=start)
        return same

    def _joint(self, first: int, fresh: Pieces, start: int) -> tuple[int, int] | None:
        """The first place, not before draft token `first`, where both have a token boundary: the number of
        tokens before it in each.
        """
        ends = self.pieces.ends
        for at in range(first, len(ends) + 1):
            taken = fresh.after(ends[at - 1] - start)
            if taken is not None and ends[at : at + 1] != ends[at - 1 : at]:
                return at, taken
        return None
