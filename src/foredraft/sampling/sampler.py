"""Chooses one request's tokens from the target's logits (docs/how-it-works.md)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from foredraft.sampling.guide import Guide
from foredraft.sampling.history import TokenCounts
from foredraft.sampling.noise import (
    ACCEPT,
    MATCH,
    RESIDUAL,
    TokenIds,
    depth_stream,
    gumbel_argmax,
    gumbel_choice,
    make_key,
    uniform,
)
from foredraft.sampling.params import validate_params
from foredraft.sampling.processors import (
    RowRules,
    is_greedy,
    mass,
    peak,
    probabilities,
    survivors,
    top_tokens,
    truncates,
)
from foredraft.types import Draft, Logits, Probs, SamplingParams, TokenLogprob

if TYPE_CHECKING:
    from foredraft.sampling.thought import ThoughtGuide

__all__ = ["RequestSampler", "choose_token", "processed", "validate_params"]

_ZERO: TokenIds = np.zeros(1, np.int64)


def choose_token(row: Logits, params: SamplingParams, key: int) -> int:
    """The token of an adjusted row: argmax when greedy (ties: lowest id), else Gumbel-max with `key`."""
    if is_greedy(params):
        peak(row)
        return int(row.argmax())
    if truncates(params):
        return gumbel_argmax(*survivors(row, params), key)
    peak(row)
    return gumbel_choice(row, params.temperature, key)


def processed(row: Logits, params: SamplingParams) -> Probs:
    """The distribution `choose_token` samples from, shape (vocabulary,); one-hot when greedy."""
    if is_greedy(params):
        peak(row)
        out: Probs = np.zeros(row.size)
        out[row.argmax()] = 1.0
        return out
    return probabilities(survivors(row, params), row.size)


class RequestSampler:
    """The target's choice of tokens for one request.

    A function of seed, position and history only: two samplers with the same committed tokens choose the same
    next token, whatever was drafted. Rows have shape (vocabulary,) and are never modified.
    """

    def __init__(
        self,
        params: SamplingParams,
        *,
        seed: int,
        vocab_size: int,
        end_tokens: frozenset[int],
        prompt: Sequence[int],
        guide: Guide | ThoughtGuide | None = None,
    ) -> None:
        self._params = params
        self._guide = guide
        self._seed = seed
        self._length = len(prompt)
        self._generated = 0
        self._rules = RowRules(params)
        self._counts = TokenCounts(vocab_size, prompt) if self._rules.counting else None
        self._banned = early_bans(params, end_tokens)
        self._greedy = is_greedy(params)
        self._plain = not self._rules.active and not self._banned.size
        self.completed_at: int | None = None
        """The `position` at which the request's constraint was complete; None before, or without a
        constraint.
        """

    @property
    def position(self) -> int:
        """The number of tokens before the next one, in prompt and output."""
        return self._length

    def choose(self, row: Logits, extra: Sequence[int] = ()) -> int:
        """The target's own token after the history and `extra`.

        Raises BackendError for logits that are not numbers, RequestError if every token is banned.
        """
        if self._guide is not None:
            return self._choose_guided(self._guide, row, extra)
        if self._plain and self._greedy:
            # numpy's argmax returns the first NaN, so no second pass over the row is needed to find one.
            best = int(row.argmax())
            if not row[best] > -np.inf:
                peak(row)
            return best
        key = make_key(self._seed, self._length + len(extra), MATCH)
        return choose_token(self._adjust(row, extra), self._params, key)

    def _choose_guided(self, guide: Guide | ThoughtGuide, row: Logits, extra: Sequence[int]) -> int:
        row, params = self._adjust(row, extra), self._params
        key = make_key(self._seed, self._length + len(extra), MATCH)
        if not extra:
            forced = guide.forced()
            if forced and row[forced[0]] > -np.inf:
                return forced[0]
            if not forced and not truncates(params):
                # If the overall maximum is allowed, it is also the maximum of the allowed tokens: no mask
                # needed.
                token = choose_token(row, params, key)
                if guide.allows(token):
                    return token
        return choose_token(guide.mask(row, extra), params, key)

    def distribution(self, row: Logits, extra: Sequence[int] = ()) -> Probs:
        """The distribution that `choose` samples from, after the history and `extra`. Raises as `choose`
        does.
        """
        adjusted = self._adjust(row, extra)
        if self._guide is not None:
            adjusted = self._guide.mask(adjusted, extra)
        return processed(adjusted, self._params)

    def prune(self, draft: Draft) -> Draft | None:
        """The part of a draft that the request's constraint allows; None if that is nothing."""
        return draft if self._guide is None else self._guide.prune(draft)

    def logprob(self, row: Logits, token: int) -> TokenLogprob:
        """The token's log-probability under the unmodified logits (vLLM's `raw_logprobs`), in nats, with the
        `params.logprobs` likeliest alternatives, best first.
        """
        best = peak(row)
        whole = best + math.log(mass(row, best, 1.0))
        others = top_tokens(row, self._params.logprobs or 0)
        top = tuple((other, float(row[other]) - whole) for other in others)
        return TokenLogprob(token, float(row[token]) - whole, top)

    def advance(self, token: int) -> None:
        """Commit a token. Raises RequestError if the constraint forbids it."""
        if self._guide is not None:
            self._guide.advance((token,))
            if self._guide.complete and self.completed_at is None:
                self.completed_at = self._length + 1
        self._length += 1
        self._generated += 1
        if self._counts is not None:
            self._counts.add(token)
        if self._banned.size and self._generated >= self._params.min_tokens:
            self._banned = _ZERO[:0]
            self._plain = not self._rules.active

    def uniform_at(self, index: int) -> float:
        """Uniform noise in (0, 1) for the acceptance test of draft token `index` of this round.

        Independent of the noise that chooses tokens, and of every other round's. Must be called before the
        round's tokens are committed with `advance`.
        """
        return float(uniform(self._seed, self._length + index, _ZERO, depth_stream(ACCEPT, index))[0])

    def pick(self, probs: Probs, index: int) -> int:
        """A sample of `probs` for token `index` of this round, by Gumbel-max with separate noise.

        `probs` need not be normalised. As `uniform_at`, it must be called before `advance`.
        """
        tokens = np.flatnonzero(probs)
        key = make_key(self._seed, self._length + index, depth_stream(RESIDUAL, index))
        return gumbel_argmax(tokens, np.log(probs[tokens]), key)

    def _adjust(self, row: Logits, extra: Sequence[int]) -> Logits:
        if self._plain:
            return row
        early = self._banned.size and self._generated + len(extra) < self._params.min_tokens
        counts = None if self._counts is None else self._counts.extended(extra)
        return self._rules.apply(row, self._banned if early else None, counts)


def early_bans(params: SamplingParams, end_tokens: frozenset[int]) -> TokenIds:
    """The tokens that must not come before `min_tokens` were generated: all that would end the text.

    With `ignore_eos` end tokens do not end the text, so only stop tokens are banned.
    """
    if params.min_tokens <= 0:
        return _ZERO[:0]
    ends = set(params.stop_tokens) if params.ignore_eos else set(params.stop_tokens) | end_tokens
    return np.array(sorted(ends), np.int64)
