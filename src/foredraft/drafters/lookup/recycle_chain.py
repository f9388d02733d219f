# cython: language_level=3, annotation_typing=False, initializedcheck=False
"""What `recycle` makes of its table: how likely a context's first successor is, and the chain of them."""

from __future__ import annotations

from collections.abc import Container

from foredraft.drafters.lookup.recycle_table import SuccessorTable
from foredraft.drafters.scope_key import ScopeKey

# How often the first successor was right, by how often in a row it had followed (0: an opinion). Measured on
# greedy answers of a 135M model to prompts of six kinds; the planner learns the rest.
_AFTER_ONE = (0.12, 0.12, 0.16, 0.18, 0.20, 0.20, 0.20, 0.20)
_AFTER_ONE_OWN = (0.30, 0.24, 0.40, 0.57, 0.70, 0.76, 0.80, 0.84)
_AFTER_TWO = (0.12, 0.17, 0.30, 0.38, 0.40, 0.45, 0.48, 0.53)
_AFTER_TWO_AGREED = (0.36, 0.36, 0.50, 0.55, 0.60, 0.65, 0.70, 0.77)
_AFTER_TWO_OWN = (0.60, 0.58, 0.84, 0.93, 0.965, 0.985, 0.99, 0.995)
# And each further one where those before it were wrong.
_NEXT = {1: (0.09, 0.07, 0.05), 2: (0.18, 0.12, 0.08)}
_NEXT_OWN = {1: (0.16, 0.11, 0.07), 2: (0.45, 0.27, 0.18)}


class Reader:
    """Reads the table for one request, which wrote in it under `number`. After each `look` that found
    something: `place`, the row; `token`, the first successor; `chance`, that it is right; `matched`, how many
    tokens of context the row has; `times` and `own` of the row.
    """

    def __init__(self, table: SuccessorTable, scope: ScopeKey, number: int) -> None:
        self._table = table
        self._offset, self._secret = scope.offset, scope.secret
        self._number = number
        self.place = -1
        self.token = 0
        self.chance = 0.0
        self.matched = 0
        self.times = 0
        self.own = False

    def look(self, before: int, last: int) -> bool:
        """What the table has for the last two tokens, or else for the last one; `before` = -1 for no token.
        Whether it has anything.
        """
        table, single = self._table, -1
        pair = table.place(before, last, self._offset, self._secret) if before >= 0 else -1
        if pair >= 0:
            self._take(pair, 2)
            if self.own:
                self.chance = _AFTER_TWO_OWN[self.times]
                return True
        single = table.place(-1, last, self._offset, self._secret)
        if pair >= 0:
            agreed = single >= 0 and table.first(single) == self.token
            self.chance = _AFTER_TWO_AGREED[self.times] if agreed else _AFTER_TWO[self.times]
            return True
        if single < 0:
            return False
        self._take(single, 1)
        self.chance = _AFTER_ONE_OWN[self.times] if self.own else _AFTER_ONE[self.times]
        return True

    def _take(self, place: int, matched: int) -> None:
        self.place = place
        self.matched = matched
        self.token = self._table.first(place)
        self.times = self._table.times(place)
        self.own = self._table.own(place, self._number)

    def further(self) -> tuple[float, ...]:
        """The chance of each further successor, where those before it are wrong."""
        return (_NEXT_OWN if self.own else _NEXT)[self.matched]

    def chain(
        self, last: int, most: int, least: float, ends: Container[int]
    ) -> tuple[list[int], list[float]]:
        """The best successor of the best successor …, and the estimate for each, from what `look` found after
        the token `last`; to a token of `ends`, or until all of it is right with a chance under `least`.
        """
        tokens: list[int] = []
        confidence: list[float] = []
        survival, found = 1.0, True
        while found:
            survival *= self.chance
            if tokens and survival < least:
                break
            token = self.token
            tokens.append(token)
            confidence.append(self.chance)
            if len(tokens) == most or token in ends:
                break
            found = self.look(last, token)
            last = token
        return tokens, confidence
