"""Chooses a draft model's tokens, coupled to the target through shared noise (docs/how-it-works.md).

With the rule `match` a draft token is accepted iff the target would choose it, and the target chooses
argmax(log p + G) with keyed noise G. If the draft model proposes argmax(log q + G) with the same noise, they
agree with probability at least (1 − TV) ÷ (1 + TV), TV the total variation distance of p and q (Daliri, Musco
and Suresh 2024, arXiv 2408.07978). Proposing argmax q instead would only agree with probability p(argmax q).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from foredraft.protocols import RequestView
from foredraft.sampling.guide import Guide
from foredraft.sampling.history import TokenCounts
from foredraft.sampling.noise import DRAFT, MATCH, TokenIds, depth_stream, make_key
from foredraft.sampling.processors import (
    RowRules,
    is_greedy,
    mass,
    peak,
    survivors,
    truncates,
)
from foredraft.sampling.sampler import choose_token, early_bans, processed
from foredraft.types import Logits, Probs, SamplingParams

if TYPE_CHECKING:
    from foredraft.sampling.thought import ThoughtGuide

REMEMBERED = 64
"""Maximum requests whose rules and counts are cached; the least recently used is rebuilt when needed."""


@dataclass(slots=True)
class _Request:
    """A request's cached rules, and the counts and guide that follow its history."""

    params: SamplingParams
    prompt_length: int
    rules: RowRules
    banned: TokenIds
    counts: TokenCounts | None
    guide: Guide | ThoughtGuide | None
    counted: int
    last: int


class CoupledSampler:
    """A protocols.TokenSampler: the request's own processors on the draft model's logits, then

    - greedy: the likeliest token;
    - rule `match`: argmax(log q + G) with the target's noise for that position;
    - rules `rejection` and `block`: a draw from q with separate noise, fresh in every round, and q.

    The returned probability is the token's under the processed q. `follow` creates the guide of a request's
    answer; without it constraints are left to the target.
    """

    def __init__(
        self,
        vocab_size: int,
        end_tokens: frozenset[int],
        follow: Callable[[SamplingParams], Guide | ThoughtGuide | None] | None = None,
    ) -> None:
        self._follow = follow
        self._vocab_size = vocab_size
        self._end_tokens = end_tokens
        self._requests: OrderedDict[int, _Request] = OrderedDict()

    def propose(
        self, logits: Logits, request: RequestView, prefix: Sequence[int]
    ) -> tuple[int, float, Probs | None]:
        """The token to propose after `request.tokens + prefix`, its probability, and q if it was drawn from
        q. Raises BackendError for logits that are not numbers, RequestError if every token is banned.
        """
        params = request.params
        row = self._adjust(logits, request, prefix)
        position = len(request.tokens) + len(prefix)
        if not is_greedy(params) and params.verify != "match":
            key = make_key(request.seed, position, depth_stream(DRAFT, len(prefix)))
            token, probs = choose_token(row, params, key), processed(row, params)
            return token, float(probs[token]), probs
        key = make_key(request.seed, position, MATCH)
        token = choose_token(row, params, key)
        return token, _probability(row, params, token), None

    def _adjust(self, logits: Logits, request: RequestView, prefix: Sequence[int]) -> Logits:
        known = self._know(request)
        generated = len(request.tokens) + len(prefix) - request.prompt_length
        banned = known.banned if generated < request.params.min_tokens else None
        counts = None if known.counts is None else known.counts.extended(prefix)
        row = known.rules.apply(logits, banned, counts)
        return row if known.guide is None else known.guide.mask(row, prefix)

    def _know(self, request: RequestView) -> _Request:
        """The request's entry, updated to its history in time proportional to the new tokens."""
        known = self._requests.get(request.id)
        if known is None or self._stale(known, request):
            known = self._build(request)
            self._requests[request.id] = known
            if len(self._requests) > REMEMBERED:
                self._requests.popitem(last=False)
        self._requests.move_to_end(request.id)
        tokens = request.tokens
        if known.counted < len(tokens) and not (known.counts is None and known.guide is None):
            new = tokens[known.counted :]
            if known.counts is not None:
                for token in new:
                    known.counts.add(token)
            if known.guide is not None:
                known.guide.advance(new)
            known.counted, known.last = len(tokens), tokens[-1]
        return known

    def _stale(self, known: _Request, request: RequestView) -> bool:
        """Whether it is another request with the same id, or text was removed. A rewritten text of at least
        the old length with the same token at its end is not detected; q then has the old text's penalties
        until the next removal, which may reduce acceptance but not correctness: any q may draft.
        """
        if known.params is not request.params or known.prompt_length != request.prompt_length:
            return True
        if known.counts is None and known.guide is None:
            return False
        tokens = request.tokens
        return known.counted > len(tokens) or bool(known.counted and tokens[known.counted - 1] != known.last)

    def _build(self, request: RequestView) -> _Request:
        # Text may have been removed from the prompt itself.
        params, start = request.params, min(request.prompt_length, len(request.tokens))
        rules = RowRules(params)
        counts = TokenCounts(self._vocab_size, request.tokens[:start]) if rules.counting else None
        banned = early_bans(params, self._end_tokens)
        guide = None
        if self._follow is not None:
            guide = self._follow(params)
        last = request.tokens[start - 1] if start else -1
        return _Request(params, request.prompt_length, rules, banned, counts, guide, start, last)


def _probability(row: Logits, params: SamplingParams, token: int) -> float:
    """The token's probability under the processed row. If greedy, under the row at temperature 1: the one-hot
    distribution has no information about how likely the target agrees.
    """
    if not is_greedy(params) and truncates(params):
        tokens, scores = survivors(row, params)
        weights = np.exp(scores - scores.max())
        return float(weights[tokens == token].sum() / weights.sum())
    temperature = 1.0 if is_greedy(params) else params.temperature
    best = peak(row)
    return math.exp((float(row[token]) - best) / temperature) / mass(row, best, temperature)
