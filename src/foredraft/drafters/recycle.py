"""`recycle`: token recycling (Luo et al. 2024, "Turning Trash into Treasure", arXiv 2408.08696).

As in the paper an adjacency table keeps a token's last successors, and a draft follows the table from the
text's last token: the best successor each time, or, if the model verifies trees, the most promising branches.

Two differences from the paper improved the drafts for replayed answers (lab/notes): the table learns from the
text, prompt included, and not from the target's logits; and a context of two tokens is looked up before the
context of one.

The table is shared by the requests of a scope while the process lives. Nothing is written to disk. Memory:
one table of at most 8 MB for all requests and scopes (recycle_table.py), and three numbers a request.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

from foredraft.config import checked_by, read_options
from foredraft.drafters.base import HistoryDrafter
from foredraft.drafters.recycle_table import Row, SuccessorTable
from foredraft.drafters.scope_key import ScopeKey, ScopeKeys
from foredraft.errors import SpeculationStringError
from foredraft.protocols import Drafter, DrafterContext, RequestView
from foredraft.types import MAX_DRAFT_TOKENS, Draft, DraftLimit, Outcome

NAME = "recycle"
SUCCESSORS = 4
MOST_SUCCESSORS = 15
"""Maximum of the options `k` and `width`."""

LONGEST = 16
WIDTH = 3
MIN_SURVIVAL = 0.3
"""Minimum survival of a draft by a named drafter, which is verified completely: drafting ends below it."""

MOST_READ = 1 << 15
"""Maximum prompt tokens to learn, from its end: they take 100 ms, during which all streams wait. Hardly any
earlier token would still be in the table.
"""

BULK = 256
"""From this many new tokens on numpy is faster than learning them one by one."""

# Probability that the first successor is right, by how often in a row it had followed: once to MOST_COUNTED.
# Measured on greedy answers of a 135M model to prompts of six kinds; the planner calibrates it.
_AFTER_ONE = (0.12, 0.16, 0.18, 0.20, 0.20, 0.20, 0.20)
_AFTER_ONE_OWN = (0.24, 0.40, 0.57, 0.70, 0.76, 0.80, 0.84)
_AFTER_TWO = (0.17, 0.30, 0.38, 0.40, 0.45, 0.48, 0.53)
_AFTER_TWO_AGREED = (0.36, 0.50, 0.55, 0.60, 0.65, 0.70, 0.77)
_AFTER_TWO_OWN = (0.58, 0.84, 0.93, 0.965, 0.985, 0.99, 0.995)
# The same for each further successor if those before it were wrong.
_NEXT = {1: (0.09, 0.07, 0.05), 2: (0.18, 0.12, 0.08)}
_NEXT_OWN = {1: (0.16, 0.11, 0.07), 2: (0.45, 0.27, 0.18)}


class _Guess(NamedTuple):
    """The table's entry for the next token: the row of the last `matched` tokens, and the probability that
    its first successor is right.
    """

    row: Row
    matched: int
    probability: float

    @property
    def further(self) -> tuple[float, ...]:
        """The probability of each further successor if those before it are wrong."""
        return (_NEXT_OWN if self.row.own else _NEXT)[self.matched]


@dataclass(slots=True)
class _Reading:
    """How much of a request's history is in the table, and its number there. Removing text changes the
    number, so that the removed text counts as another request's.
    """

    size: int
    number: int
    scope: ScopeKey


class RecycleDrafter(HistoryDrafter[_Reading]):
    """Drafts at most `longest` tokens: a chain, or with `width` > 1 a tree in which a token has at most that
    many children. A draft ends where its survival falls below `min_survival`, but not before one token, and
    after a token of `end_tokens`. `k` successors are kept for each context; a chain follows the first.

    Features: `match_length`, the context length of the first token (1 or 2); `count`, how often in a row it
    had followed there; `own`, 1 if it did so last in this request.
    """

    name = NAME

    def __init__(
        self,
        *,
        k: int = SUCCESSORS,
        longest: int = LONGEST,
        width: int = 1,
        min_survival: float = 0.0,
        end_tokens: frozenset[int] = frozenset(),
        table: SuccessorTable | None = None,
    ) -> None:
        super().__init__()
        self._longest = longest
        self._width = width
        self._min_survival = min_survival
        self._end_tokens = end_tokens
        self._table = table or SuccessorTable(k)
        self._scopes = ScopeKeys()
        self._numbers = count(1)

    def build(self, request: RequestView) -> _Reading:
        number, scope = next(self._numbers), self._scopes.of(request.scope)
        self._table.follow_all(request.tokens[-MOST_READ:], scope, number)
        return _Reading(len(request.tokens), number, scope)

    def extend(self, state: _Reading, request: RequestView, outcome: Outcome) -> None:
        text = request.tokens
        if len(outcome.tokens) > BULK:
            self._table.follow_all(text[max(0, outcome.kept - 2) :], state.scope, state.number)
        else:
            self._table.follow(text, state.size, state.scope, state.number)
        state.size = len(text)

    def size(self, state: _Reading) -> int:
        return state.size

    def propose(self, state: _Reading, request: RequestView, limit: DraftLimit) -> Draft | None:
        if not request.tokens:
            return None
        most = min(limit.max_tokens, self._longest)
        least = max(limit.min_survival, self._min_survival)
        before, last = ([-1, *request.tokens[-2:]])[-2:]
        guess = self._guess(state, before, last)
        if guess is None:
            return None
        features = {
            "match_length": float(guess.matched),
            "count": float(guess.row.times),
            "own": float(guess.row.own),
        }
        if self._width == 1:
            tokens, confidence = self._chain(state, last, guess, most, least)
            return Draft(tuple(tokens), NAME, None, tuple(confidence), features)
        tokens, parents, confidence = self._tree(state, last, guess, most, least)
        return Draft(tuple(tokens), NAME, tuple(parents), tuple(confidence), features)

    def _guess(self, state: _Reading, before: int, last: int) -> _Guess | None:
        """The table's entry for the last two tokens, or else for the last one; `before` = -1: there is only
        one.
        """
        find, scope, number = self._table.find, state.scope, state.number
        pair = find(before, last, scope, number) if before >= 0 else None
        if pair is not None and pair.own:
            return _Guess(pair, 2, _AFTER_TWO_OWN[pair.times - 1])
        single = find(-1, last, scope, number)
        if pair is not None:
            agreed = single is not None and single.tokens[0] == pair.tokens[0]
            return _Guess(pair, 2, (_AFTER_TWO_AGREED if agreed else _AFTER_TWO)[pair.times - 1])
        if single is None:
            return None
        return _Guess(single, 1, (_AFTER_ONE_OWN if single.own else _AFTER_ONE)[single.times - 1])

    def _chain(
        self, state: _Reading, last: int, guess: _Guess | None, most: int, least: float
    ) -> tuple[list[int], list[float]]:
        """Follow the best successors from `guess` after the token `last` on, with an estimate for each, up to
        an end token or until the chain's survival falls below `least`.
        """
        tokens: list[int] = []
        confidence: list[float] = []
        survival = 1.0
        while guess is not None:
            survival *= guess.probability
            if tokens and survival < least:
                break
            before, last = last, guess.row.tokens[0]
            tokens.append(last)
            confidence.append(guess.probability)
            if len(tokens) == most or last in self._end_tokens:
                break
            guess = self._guess(state, before, last)
        return tokens, confidence

    def _tree(
        self, state: _Reading, last: int, guess: _Guess | None, most: int, least: float
    ) -> tuple[list[int], list[int], list[float]]:
        """The `most` likeliest branches from `guess` after the token `last` on: the token with the highest
        survival is added next, so a tree that is cut keeps its best part.
        """
        tokens: list[int] = []
        parents: list[int] = []
        confidence: list[float] = []
        # (-survival, order of finding, parent's index, the token before, token, probability)
        open_: list[tuple[float, int, int, int, int, float]] = []
        found, survival, parent = 0, 1.0, -1
        while len(tokens) < most:
            if guess is not None:
                missed = 1.0
                for i, token in enumerate(guess.row.tokens[: self._width]):
                    share = guess.probability if i == 0 else guess.further[min(i, 3) - 1]
                    probability = missed * share
                    missed -= probability
                    if survival * probability >= least or (not i and not tokens):
                        heapq.heappush(
                            open_, (-survival * probability, found, parent, last, token, probability)
                        )
                        found += 1
            if not open_:
                break
            reached, _, above, last, token, probability = heapq.heappop(open_)
            parent, survival = len(tokens), -reached
            tokens.append(token)
            parents.append(above)
            confidence.append(probability)
            guess = None if token in self._end_tokens else self._guess(state, last, token)
            last = token
        return tokens, parents, confidence


def _read(options: Mapping[str, str]) -> dict[str, Any]:
    values = read_options(
        NAME, options, {"k": SUCCESSORS, "max": LONGEST, "width": WIDTH, "min-p": MIN_SURVIVAL}
    )
    for key, most in (("k", MOST_SUCCESSORS), ("max", MAX_DRAFT_TOKENS), ("width", MOST_SUCCESSORS)):
        if not 1 <= values[key] <= most:
            raise SpeculationStringError(f"{NAME}: {key}={values[key]} is not between 1 and {most}.")
    if not 0.0 <= values["min-p"] <= 1.0:
        raise SpeculationStringError(f"{NAME}: min-p={values['min-p']} must be between 0 and 1.")
    return values


@checked_by(_read)
def create(context: DrafterContext, options: Mapping[str, str]) -> Drafter:
    """Create the drafter of the stage `recycle`.

    Options: `k`, successors kept for each context (1 to 15; the table has as many rows as fit into 8 MB);
    `max`, the maximum tokens of a draft (1 to 63); `width`, the maximum children of a token if the model
    verifies trees, 1 for chains; `min-p`, the survival below which a draft ends. Raises
    SpeculationStringError.
    """
    values = _read(options)
    return RecycleDrafter(
        k=values["k"],
        longest=values["max"],
        width=values["width"] if context.capabilities.trees else 1,
        min_survival=values["min-p"],
        end_tokens=context.tokenizer.end_tokens,
    )
