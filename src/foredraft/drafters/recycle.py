"""`recycle`: token recycling (Luo et al. 2024, "Turning Trash into Treasure", arXiv 2408.08696).

The target's logits name more candidates than the one that is committed, and rows of rejected draft tokens are
computed and thrown away. Both say what tends to follow a token. As in the paper they are kept in an adjacency
table from a token to its last likely successors, and a draft follows the table from the text's last token:
the best successor each time, or, where the model verifies trees, the most promising branches.

Two things are added, because replayed answers were drafted better with them (docs/experiments.md): a context
of two tokens, which is asked before that of one, and the text itself, prompt included, which counts for more
than an opinion that was never followed.

What is learned from one request drafts in the others of its scope, while the process lives. Nothing is
written to disk. Memory: one table of at most 8 MB for all requests and scopes (recycle_table.py), and three
numbers a request.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count

from foredraft.config import read_options
from foredraft.drafters.base import HistoryDrafter
from foredraft.drafters.lookup.recycle_chain import Reader
from foredraft.drafters.lookup.recycle_table import MOST_SUCCESSORS, SuccessorTable
from foredraft.drafters.scope_key import ScopeKey, ScopeKeys
from foredraft.errors import SpeculationStringError
from foredraft.protocols import Drafter, DrafterContext, RequestView
from foredraft.types import Draft, DraftLimit, Outcome

NAME = "recycle"
SUCCESSORS = 4
LONGEST = 16
WIDTH = 3
MIN_SURVIVAL = 0.3
"""A draft named in a speculation string is verified whole, so it ends where the estimate that all of it is
right falls below this."""

MOST_READ = 1 << 15
"""Tokens of a prompt that are learnt, from its end: 100 ms, for which every stream waits. What came before
would hardly be left in the table.
"""

BULK = 256
"""From this many new tokens on numpy is faster than learning them one by one."""
LARGEST_DRAFT = 64


@dataclass(slots=True)
class _Reading:
    """How much of a request's history is in the table, and under which number it is written there. The
    number changes when text is removed, so that what it taught counts as another request's.
    """

    size: int
    number: int
    scope: ScopeKey
    reader: Reader


class RecycleDrafter(HistoryDrafter[_Reading]):
    """Drafts at most `longest` tokens: a chain, or with `width` > 1 a tree in which a token has at most that
    many children. It ends where the estimate that all of it is right falls below `min_survival`, but not
    before one token, and after a token of `end_tokens`. `k` successors are kept of each context; a chain
    only ever follows the first, so for chains the target's first choice is all that is asked for.

    Features: `match_length`, the context of the first token (1 or 2); `count`, how often in a row it had
    followed there; `own`, 1 if it did so last in this request.
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
        self.successors = k if width > 1 else 0
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
        return _Reading(len(request.tokens), number, scope, Reader(self._table, scope, number))

    def extend(self, state: _Reading, request: RequestView, outcome: Outcome) -> None:
        text = request.tokens
        if outcome.successors:
            self._hear(state, text[outcome.kept - 2] if outcome.kept > 1 else -1, outcome)
        if len(outcome.tokens) > BULK:
            self._table.follow_all(text[max(0, outcome.kept - 2) :], state.scope, state.number)
        else:
            self._table.follow(text, state.size, state.scope, state.number)
        state.size = len(text)

    def _hear(self, state: _Reading, before: int, outcome: Outcome) -> None:
        """Learn the target's opinions, of rejected tokens too. `before` is the token before the first row's,
        -1 for none.
        """
        opine, scope, number = self._table.opine, state.scope, state.number
        draft = outcome.draft
        parents = None if draft is None or draft.parents is None else draft.parents
        for i, (last, successors) in enumerate(outcome.successors):
            if not successors:
                continue
            opine(-1, last, successors, scope, number)
            if i:
                above = i - 1 if parents is None else parents[i - 1] + 1
                opine(outcome.successors[above][0], last, successors, scope, number)
            elif before >= 0:
                opine(before, last, successors, scope, number)

    def size(self, state: _Reading) -> int:
        return state.size

    def propose(self, state: _Reading, request: RequestView, limit: DraftLimit) -> Draft | None:
        if not request.tokens:
            return None
        most = min(limit.max_tokens, self._longest)
        least = max(limit.min_survival, self._min_survival)
        before, last = ([-1, *request.tokens[-2:]])[-2:]
        reader = state.reader
        if not reader.look(before, last):
            return None
        features = {
            "match_length": float(reader.matched),
            "count": float(reader.times),
            "own": float(reader.own),
        }
        if self._width == 1:
            tokens, confidence = reader.chain(last, most, least, self._end_tokens)
            return Draft(tuple(tokens), NAME, None, tuple(confidence), features)
        tokens, parents, confidence = self._tree(last, state, most, least)
        return Draft(tuple(tokens), NAME, tuple(parents), tuple(confidence), features)

    def _tree(
        self, last: int, state: _Reading, most: int, least: float
    ) -> tuple[list[int], list[int], list[float]]:
        """The `most` likeliest branches from what the reader found after `last`: the token that is likeliest
        to be reached and right is added next, so a tree that is cut keeps its best part.
        """
        reader, looked = state.reader, True
        tokens: list[int] = []
        parents: list[int] = []
        confidence: list[float] = []
        # (-survival, order of finding, parent's index, the token before, token, chance)
        open_: list[tuple[float, int, int, int, int, float]] = []
        found, survival, parent = 0, 1.0, -1
        while len(tokens) < most:
            if looked:
                missed, further = 1.0, reader.further()
                for i, token in enumerate(self._table.row(reader.place)[: self._width]):
                    share = reader.chance if i == 0 else further[min(i, 3) - 1]
                    chance = missed * share
                    missed -= chance
                    if survival * chance >= least or (not i and not tokens):
                        heapq.heappush(open_, (-survival * chance, found, parent, last, token, chance))
                        found += 1
            if not open_:
                break
            reached, _, above, last, token, chance = heapq.heappop(open_)
            parent, survival = len(tokens), -reached
            tokens.append(token)
            parents.append(above)
            confidence.append(chance)
            looked = token not in self._end_tokens and reader.look(last, token)
            last = token
        return tokens, parents, confidence


def create(context: DrafterContext, options: Mapping[str, str]) -> Drafter:
    """The drafter of the stage `recycle`.

    Options: `k`, successors kept for each context (1 to 15; the table has as many rows as fit into 8 MB);
    `max`, the longest draft (1 to 64 tokens); `width`, the most children of a token where the model verifies
    trees, 1 for chains; `min-p`, the estimate that all of the draft is right below which it ends. Raises
    SpeculationStringError.
    """
    values = read_options(
        NAME, options, {"k": SUCCESSORS, "max": LONGEST, "width": WIDTH, "min-p": MIN_SURVIVAL}
    )
    for key, most in (("k", MOST_SUCCESSORS), ("max", LARGEST_DRAFT), ("width", MOST_SUCCESSORS)):
        if not 1 <= values[key] <= most:
            raise SpeculationStringError(f"{NAME}: {key}={values[key]} is not between 1 and {most}.")
    if not 0.0 <= values["min-p"] <= 1.0:
        raise SpeculationStringError(f"{NAME}: min-p={values['min-p']} must be between 0 and 1.")
    return RecycleDrafter(
        k=values["k"],
        longest=values["max"],
        width=values["width"] if context.capabilities.trees else 1,
        min_survival=values["min-p"],
        end_tokens=context.tokenizer.end_tokens,
    )
