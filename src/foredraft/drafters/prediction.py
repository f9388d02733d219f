"""`prediction`: draft the text that the client expects, and resynchronise after a deviation.

The request's `prediction` is OpenAI's field of that name. A cursor moves along it with the output. After a
deviation the cursor is lost, and with every further token the end of the output is searched in the
prediction: among the places where the longest gram occurs, the nearest one ahead is used.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from foredraft.config import checked_by
from foredraft.drafters.base import HistoryDrafter, read_longest
from foredraft.protocols import Drafter, DrafterContext, RequestView
from foredraft.types import MAX_DRAFT_TOKENS, Draft, DraftLimit, Outcome

NAME = "prediction"

GRAMS = (1, 2, 3, 4, 6, 8)
"""Lengths of the output's end that are searched for; the longest gram that occurs sets the cursor."""
NEAR = 24
"""A single token only sets the cursor if it occurs once, or this close ahead of where the cursor was lost."""

_BASE = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_PLACE_BITS = 24  # of a packed (hash, place) pair; a longer prediction is truncated
_PLACE_MASK = (1 << _PLACE_BITS) - 1
_POWERS = tuple(pow(_BASE, width, 1 << 64) for width in range(1, max(GRAMS) + 1))

_PRIOR = 0.9  # initial estimate of the acceptance
_MEMORY = 0.95  # decay of the running acceptance per token: about twenty tokens count
_DOUBT = 0.4  # share of wrong tokens right after the cursor was set, divided by the tokens matched since


class GramPlaces:
    """End positions of the grams of a fixed text: for each length a sorted array of packed (hash, place)
    pairs.

    One bisection finds the occurrence nearest to a place. Memory is 8 × len(GRAMS) bytes a token.
    """

    def __init__(self, text: Sequence[int]) -> None:
        self._text = text
        tokens = np.asarray(text, np.int64).view(np.uint64)
        self._places: dict[int, memoryview] = {}
        hashes = np.zeros(len(tokens) + 1, np.uint64)  # of the empty gram at every place
        for width in range(1, min(max(GRAMS), len(tokens)) + 1):
            hashes = hashes[1:] + tokens[: len(tokens) - width + 1] * np.uint64(_POWERS[width - 1])
            if width in GRAMS:
                places = np.arange(width, len(tokens) + 1, dtype=np.uint64)
                packed = hashes & np.uint64(_MASK ^ _PLACE_MASK) | places
                packed.sort()
                self._places[width] = memoryview(packed.data)

    def nearest(self, gram: Sequence[int], place: int) -> tuple[int, bool] | None:
        """The end of the first occurrence at or after `place`, else of the last one before it; and whether it
        is the only one. None if the gram, whose length is one of GRAMS, does not occur.
        """
        width = len(gram)
        packed = self._places.get(width)
        if packed is None:
            return None
        hashed = sum(token * power for token, power in zip(reversed(gram), _POWERS, strict=False)) & _MASK
        key = hashed & ~_PLACE_MASK
        ahead = bisect_left(packed, key | place)
        same = [
            packed[i] & _PLACE_MASK
            for i in (ahead, ahead - 1, ahead + 1, ahead - 2)
            if 0 <= i < len(packed) and packed[i] & ~_PLACE_MASK == key
        ]
        if not same or list(self._text[same[0] - width : same[0]]) != list(gram):
            return None
        return same[0], len(same) == 1


@dataclass(slots=True)
class _Walk:
    """The output's position in the prediction. A function of both, computed token by token."""

    expected: tuple[int, ...]
    grams: GramPlaces
    prompt_length: int
    size: int
    cursor: int = 0
    """The position of the next expected token or, while lost, of the one that did not come."""
    lost: int = 0
    """Tokens since the cursor was lost; 0 if it is not."""
    match_length: int = 0
    """Length of the gram that set the cursor; 0 at the output's beginning."""
    since_sync: int = 0
    rate: float = _PRIOR

    def advance(self, history: Sequence[int], until: int) -> None:
        """Follow `history[self.size:until]`."""
        while self.size < until:
            token = history[self.size]
            self.size += 1
            hit = not self.lost and self.cursor < len(self.expected) and token == self.expected[self.cursor]
            if not self.lost:
                self.rate += (1 - _MEMORY) * (hit - self.rate)
            if hit:
                self.cursor += 1
                self.since_sync += 1
            else:
                self._synchronise(history)

    def _synchronise(self, history: Sequence[int]) -> None:
        output = self.size - self.prompt_length
        matched, place, only = 0, 0, False
        for width in GRAMS:
            if width > output:
                break
            found = self.grams.nearest(history[self.size - width : self.size], self.cursor)
            if found is None:  # then no longer gram occurs either
                break
            matched, (place, only) = width, found
        if matched > 1 or (matched and (only or 0 <= place - self.cursor <= NEAR)):
            self.cursor, self.match_length, self.lost, self.since_sync = place, matched, 0, 0
        else:
            self.lost += 1


class PredictionDrafter(HistoryDrafter[_Walk | None]):
    """Drafts the predicted text from the cursor on; nothing without a prediction or past its end.

    Directly after a deviation the drafter assumes that the token replaced the expected one. Features:
    `match_length`, the length of the gram that set the cursor (0 at the output's beginning and for an assumed
    replacement), `since_sync`, the tokens that were as predicted since then.
    """

    name = NAME

    def __init__(self, longest: int = MAX_DRAFT_TOKENS) -> None:
        super().__init__()
        self._longest = longest

    def build(self, request: RequestView) -> _Walk | None:
        if not request.prediction:
            return None
        expected = request.prediction[:_PLACE_MASK]
        start = min(request.prompt_length, len(request.tokens))
        walk = _Walk(request.prediction, GramPlaces(expected), start, start)
        walk.advance(request.tokens, len(request.tokens))
        return walk

    def extend(self, state: _Walk | None, request: RequestView, outcome: Outcome) -> None:  # noqa: ARG002
        if state is not None:
            state.advance(request.tokens, len(request.tokens))

    def size(self, state: _Walk | None) -> int:
        return state.size if state is not None else 0

    def observe(self, request: RequestView, outcome: Outcome) -> None:
        state = self._states[request.id]
        if state is None and not request.prediction:
            return
        if (
            state is not None
            and request.prediction is state.expected
            and request.prompt_length == state.prompt_length
        ):
            super().observe(request, outcome)
        else:  # the conversation's next turn
            self._states[request.id] = self.build(request)

    def propose(self, state: _Walk | None, request: RequestView, limit: DraftLimit) -> Draft | None:  # noqa: ARG002
        if state is None or state.lost > 1:
            return None
        place = state.cursor + state.lost
        tokens = state.expected[place : place + min(limit.max_tokens, self._longest)]
        if not tokens:
            return None
        known = 0.5 if state.lost else 1.0 + state.match_length + state.since_sync
        confidence = tuple(state.rate * (1 - _DOUBT / (known + i)) for i in range(len(tokens)))
        features = {
            "match_length": 0.0 if state.lost else float(state.match_length),
            "since_sync": 0.0 if state.lost else float(state.since_sync),
        }
        return Draft(tokens, self.name, confidence=confidence, features=features)


_read = partial(read_longest, NAME)


@checked_by(_read)
def create(context: DrafterContext, options: Mapping[str, str]) -> Drafter:  # noqa: ARG001
    """Create the drafter of the stage `prediction`. Option: `max`, the maximum tokens of a draft (at least
    1).

    Raises SpeculationStringError.
    """
    return PredictionDrafter(_read(options))
