"""Whether asking for a draft may pay, told before it is asked from the match at a text's end (`echo`).

Credit for asking is spent where nothing is known; this says where something is. What a match of so many
tokens promises, if this token comes next (`lexical`), is compared with what its rows and the question cost,
and with what the request may lose.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

import numpy as np

from foredraft.planner.cost import CostCurve
from foredraft.planner.ratios import LONGEST
from foredraft.planner.stake import Stakes
from foredraft.planner.tables.echo import Echo
from foredraft.planner.tables.lexical import NONE, Lexical, moved
from foredraft.protocols import RequestView

# How often the next token came as it came after the match, by the match's length in tokens. Measured on
# greedy answers of a 135M model; each value holds up to the next.
_RIGHT = {0: 0.0, 1: 0.25, 2: 0.52, 3: 0.6, 4: 0.74, 6: 0.78, 8: 0.89, 16: 0.93, 24: 0.945, 32: 0.98}
_LONG = 64
"""Matches longer than this count as this long."""

FRESH = 64
"""Rounds after which what pays is computed anew."""

_TINY = 1e-9

_RISKED = 4
"""Tokens of which a request's stake must cover one or more."""


def _expected() -> list[list[float]]:
    """For each length of a match the survival of the tokens after it, as many as a draft may have."""
    chances: list[float] = []
    for length in range(_LONG + LONGEST + 1):
        chances.append(_RIGHT.get(length, chances[-1] if chances else 0.0))
    return [list(accumulate(chances[length : length + LONGEST], mul)) for length in range(_LONG + 1)]


SURVIVAL = _expected()
_COMMITTED = np.cumsum(np.array(SURVIVAL), axis=1)
"""Expected tokens of a draft, of shape (length of the match, length of the draft less one)."""

GROWN = 1.5
"""A match that was promising, and brought no draft, is so again when it is this many times as long."""


class Hints:
    """What the texts of all requests say about asking."""

    def __init__(self, curve: CostCurve, stakes: Stakes, lexical: Lexical) -> None:
        self._curve = curve
        self._lexical = lexical
        self._stakes = stakes
        self._echo = Echo()
        self._weighed: tuple[int, int] | None = None  # in which rounds, with how many decoding
        self._enough: list[float] = []  # by the match's length: the chance of the next token that is enough
        self._never = True  # no chance is
        self._extra: list[float] = []
        self._told: dict[int, tuple[int, int]] = {}  # the match's length last seen, and the next promising
        self.chance = 0.0
        """With which the token comes that `likely` last looked at."""
        self._turn = 0
        self._seldom = self._looked = False

    def weigh(self, cost: float, decoding: int, *, dear: bool = False) -> None:
        """From now on asking for one request costs `cost` plain rounds, where so many decode together. Where
        that is `dear` looking at a text's end takes half a percent of a round, too: it is done in every other
        one.

        Of each length of a match it is worked out how likely the next token must be, so that the best draft
        brings more than its rows and the question take; the tokens after that one are as likely as usual.
        """
        self._seldom = dear
        now = self._curve.rounds // FRESH, decoding
        if now == self._weighed:
            return
        if self._weighed is not None and decoding < self._weighed[1]:
            self._told.clear()  # what did not pay among more may pay now
        self._weighed = now
        plain = self._curve.ratio(decoding)
        rows = np.array(self._curve.ratios(decoding + 1, LONGEST)) - plain + self._curve.resize
        share = (rows + cost) / np.maximum(_COMMITTED * (plain / decoding), _TINY)
        self._enough = (share.min(axis=1) * _COMMITTED[:, 0]).tolist()
        self._never = min(self._enough[1:]) > 1.0
        self._extra = [0.0, *(rows[:_RISKED] / plain).tolist()]

    def lasts(self, first: int) -> int:
        """For how many rounds from number `first` on what was last weighed holds."""
        return FRESH if self._weighed is None else max(0, (self._weighed[0] + 1) * FRESH - first)

    def rest(self) -> None:
        """Asking costs next to nothing: nobody needs a hint."""
        self._weighed = None

    def start(self, request: RequestView) -> None:
        """A request begins: its prompt is looked through now, and not between its first two tokens."""
        if self._weighed is not None and not self._never:
            self._echo.length(request)

    def likely(self, requests: Sequence[RequestView]) -> RequestView | None:
        """The request whose text has come to where a draft is likely to pay, by what was last weighed; None
        if there is none, or nothing was weighed.

        One of them is looked at, the next in turn: it takes time between two forwards, and a passage that is
        worth a question goes on for some rounds.
        """
        if self._weighed is None or self._never or not requests:
            return None
        self._looked = not self._looked
        if self._seldom and not self._looked:
            return None
        turn = self._turn % len(requests)
        request, self._turn = requests[turn], turn + 1
        length = self._echo.length(request)
        return request if length > 0 and self._likely(request, length) else None

    def _likely(self, request: RequestView, length: int) -> bool:
        """Whether the token that came after the match is likely to come; which one it is counts."""
        enough, usual = self._enough[min(length, _LONG)], SURVIVAL[min(length, _LONG)][0]
        if enough > 1.0:
            return False
        tokens, at = request.tokens, self._echo.expected(request)
        following = tokens[at + 1] if at + 1 < len(tokens) else NONE
        origin = int(at < request.prompt_length)
        odds = self._lexical.odds(tokens[-1], tokens[at], following, length, origin)
        self.chance = moved(usual, odds)
        return self.chance >= enough

    def promising(self, request: RequestView, rested: int = 0) -> bool:
        """Whether the match of a request that is `likely` says more than when it last was promising.
        `rested`: rounds of a rest that its stake was not told of.
        """
        length = self._echo.length(request)
        last, needed = self._told.get(request.id, (0, 0))
        if last <= length < needed:
            self._told[request.id] = length, needed
            return False
        if not self._covered(request.id, length, rested):
            return False
        self._told[request.id] = length, max(length + 1, int(length * GROWN))
        return True

    def _covered(self, request: int, length: int, rested: int) -> bool:
        """Whether the request's stake covers a draft after a match of so many tokens."""
        survival = SURVIVAL[min(length, _LONG)][:_RISKED]
        return self._stakes.cut(request, survival, self._extra, rested=rested) > 0

    def drafted(self, request: int) -> None:
        """A draft of the request was verified: its match goes on being worth a question."""
        self._told.pop(request, None)

    def forget(self, request: int) -> None:
        """The request is over."""
        self._told.pop(request, None)
        self._echo.forget(request)
