"""Logits processors: pure functions on one row, in vLLM's order.

bans (end tokens before `min_tokens`) → logit bias → repetition, frequency and presence penalty → constraint
mask (`guide`) → temperature → min-p → top-k → top-p. The first half maps a row to a row; the second half
reduces it to its survivors, a pair (token ids ascending, logits ÷ temperature in float64), so that noise and
probabilities are only computed for tokens that can still be chosen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from foredraft.errors import NoNextTokenError, NotNumbersError
from foredraft.sampling.history import TokenCounts
from foredraft.sampling.noise import SLICE, Floats, TokenIds, largest_floor
from foredraft.types import Logits, Probs, SamplingParams

Survivors: TypeAlias = tuple[TokenIds, Floats]

GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy, as in vLLM: the quotient would exceed float32's range."""


# --- row to row ----------------------------------------------------------------------------------------


def ban(row: Logits, tokens: TokenIds) -> Logits:
    """Ban these tokens."""
    out = row.copy()
    out[tokens] = -np.inf
    return out


def add_bias(row: Logits, tokens: TokenIds, biases: Logits) -> Logits:
    """Add `biases[i]` to the logit of `tokens[i]`; −inf bans it. Token ids must be distinct."""
    out = row.copy()
    out[tokens] += biases
    return out


def penalize_repetition(row: Logits, counts: TokenCounts, penalty: float) -> Logits:
    """Divide positive logits of tokens seen in prompt or output by `penalty`, multiply negative ones
    (Keskar et al. 2019, arXiv 1909.05858, with the sign fix that every engine uses).
    """
    out = row.copy()
    seen = np.flatnonzero(counts.seen)
    logits = out[seen]
    out[seen] = np.where(logits > 0, logits / penalty, logits * penalty)
    return out


def penalize_counts(row: Logits, counts: TokenCounts, frequency: float, presence: float) -> Logits:
    """OpenAI's penalties on generated tokens: logit − frequency · count − presence · (count > 0)."""
    out = row.copy()
    used = np.flatnonzero(counts.output)
    out[used] -= frequency * counts.output[used].astype(np.float32) + presence
    return out


class RowRules:
    """The row-to-row half of a request's processors, ready to apply. Stateless."""

    __slots__ = ("_bias_tokens", "_biases", "_frequency", "_presence", "_repetition", "active", "counting")

    def __init__(self, params: SamplingParams) -> None:
        items = sorted(params.logit_bias.items())
        self._bias_tokens = np.array([token for token, _ in items], np.int64)
        self._biases = np.array([bias for _, bias in items], np.float32)
        self._repetition = params.repetition_penalty
        self._frequency = params.frequency_penalty
        self._presence = params.presence_penalty
        self.counting = self._repetition != 1.0 or self._frequency != 0.0 or self._presence != 0.0
        self.active = self.counting or bool(items)

    def apply(self, row: Logits, banned: TokenIds | None, counts: TokenCounts | None) -> Logits:
        """The processed row; `row` itself if no rule is active. `counts` is only read if `counting`."""
        if banned is not None and banned.size:
            row = ban(row, banned)
        if self._bias_tokens.size:
            row = add_bias(row, self._bias_tokens, self._biases)
        if counts is not None and self._repetition != 1.0:
            row = penalize_repetition(row, counts, self._repetition)
        if counts is not None and (self._frequency != 0.0 or self._presence != 0.0):
            row = penalize_counts(row, counts, self._frequency, self._presence)
        return row


# --- row to survivors ----------------------------------------------------------------------------------


def peak(row: Logits) -> float:
    """The largest logit. Raises NotNumbersError for a row with NaN, NoNextTokenError if all are banned."""
    best = float(row.max())
    if math.isnan(best):
        raise NotNumbersError(
            "The model returned logits that are not numbers.",
            hint="The model file may be damaged, its KV cache type not precise enough, or the scale of an "
            "adapter too large.",
        )
    if best == -math.inf:
        raise NoNextTokenError("No token is allowed.", hint="Relax logit_bias, min_tokens or constraint.")
    return best


def is_greedy(params: SamplingParams) -> bool:
    """Whether the likeliest token is chosen, without noise."""
    return params.temperature < GREEDY_BELOW


def truncates(params: SamplingParams) -> bool:
    """Whether min-p, top-k or top-p is active."""
    return params.min_p > 0.0 or params.top_k > 0 or params.top_p < 1.0


def survivors(row: Logits, params: SamplingParams) -> Survivors:
    """Apply temperature, then min-p, top-k and top-p. `params.temperature` must not be greedy.

    Each stage first narrows the whole row by a safe bound, so that only a few candidates are sorted and
    converted to float64. Raises as `peak` does.
    """
    best, temperature = peak(row), params.temperature
    if params.min_p > 0.0:
        tokens = np.flatnonzero(row >= best + temperature * math.log(params.min_p))
    elif 0 < params.top_k < row.size:
        tokens = np.flatnonzero(row >= largest_floor(row, params.top_k))
    elif params.top_p < 1.0:
        return _nucleus(row, best, params)
    else:
        return np.arange(row.size), row.astype(np.float64) / temperature
    kept: Survivors = (tokens, row[tokens].astype(np.float64) / temperature)
    if params.top_k > 0:
        kept = keep_top_k(*kept, params.top_k)
    if params.top_p < 1.0:
        kept = keep_top_p(*kept, params.top_p)
    return kept


def keep_top_k(tokens: TokenIds, scores: Floats, k: int) -> Survivors:
    """The k largest scores; among equals the lower ids."""
    if k >= scores.size:
        return tokens, scores
    return _keep(tokens, scores, k, np.partition(scores, scores.size - k)[scores.size - k])


def keep_top_p(tokens: TokenIds, scores: Floats, p: float, total: float | None = None) -> Survivors:
    """The smallest set of likeliest tokens whose probability reaches p; never empty.

    A token stays iff the tokens ahead of it (larger score; among equals, lower id) have less than p. `total`
    is Σ exp(score − max score) if `tokens` is only the head of a larger set.
    """
    falling = np.sort(scores)[::-1]
    weights = np.exp(falling - falling[0])
    ahead = np.cumsum(weights) - weights
    count = max(1, int((ahead < p * (weights.sum() if total is None else total)).sum()))
    return _keep(tokens, scores, count, falling[count - 1])


def _keep(tokens: TokenIds, scores: Floats, count: int, floor: np.float64) -> Survivors:
    """The `count` largest scores, of which `floor` is the smallest; among equals the lower ids."""
    kept = scores >= floor
    surplus = int(kept.sum()) - count
    if surplus:
        kept[np.flatnonzero(scores == floor)[-surplus:]] = False
    return tokens[kept], scores[kept]


def mass(row: Logits, best: float, temperature: float) -> float:
    """Σ exp((logit − best) ÷ temperature) over the row, in float64."""
    total = 0.0
    for first in range(0, row.size, SLICE):
        scores = row[first : first + SLICE].astype(np.float64)
        scores -= best
        scores /= temperature
        total += float(np.exp(scores, out=scores).sum())
    return total


def probabilities(kept: Survivors, vocab_size: int) -> Probs:
    """Softmax over the survivors, shape (vocabulary,), zero elsewhere."""
    tokens, scores = kept
    weights: Probs = scores - scores.max()
    np.exp(weights, out=weights)
    weights /= weights.sum()
    if tokens.size == vocab_size:
        return weights
    out: Probs = np.zeros(vocab_size)
    out[tokens] = weights
    return out


def top_tokens(row: Logits, count: int) -> Sequence[int]:
    """The `count` tokens with the largest logits, best first; among equals the lower ids first."""
    if count <= 0:
        return []
    count = min(count, row.size)
    tokens = np.flatnonzero(row >= largest_floor(row, count))
    order = np.argsort(-row[tokens], kind="stable")[:count]
    return [int(token) for token in tokens[order]]


def _nucleus(row: Logits, best: float, params: SamplingParams) -> Survivors:
    """Top-p on a whole row: only a head that certainly contains the nucleus is sorted."""
    temperature = params.temperature
    total = mass(row, best, temperature)
    for nats in (4.0, 8.0, 16.0, math.inf):
        tokens = np.flatnonzero(row >= best - nats * temperature)
        scores = row[tokens].astype(np.float64) / temperature
        if float(np.exp(scores - best / temperature).sum()) >= params.top_p * total:
            break
    return keep_top_p(tokens, scores, params.top_p, total)
