"""Prompts that are scored: log-probabilities of a prompt's own tokens, beside an answer or instead of one.

OpenAI's text completions have them (`echo` with `logprobs`), and evaluations use them to compare texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

from foredraft.errors import BackendError
from foredraft.types import (
    Event,
    FinishEvent,
    FinishReason,
    SamplingParams,
    Timings,
    TokenEvent,
    TokenLogprob,
    Usage,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringParams(SamplingParams):
    """Sampling of a request that is about its prompt too. `score_prompt`: a PromptEvent comes for each token
    of the prompt but the first, with as many alternatives as `logprobs` says. `answers`: whether anything is
    generated.
    """

    score_prompt: bool = False
    answers: bool = True


@dataclass(frozen=True, slots=True)
class PromptEvent(TokenEvent):
    """A token of the prompt, and how likely it was after those before it. All come before the answer."""


@dataclass(frozen=True, slots=True)
class Scores:
    """A prompt that was scored. `logprobs[i]` is about `tokens[i + 1]`: nothing comes before the first token,
    so that it has none.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    usage: Usage
    timings: Timings

    @property
    def total(self) -> float:
        """The natural logarithm of the probability of all tokens but the first, given the first."""
        return sum(score.logprob for score in self.logprobs)


def with_scores(params: SamplingParams, *, score_prompt: bool, answers: bool) -> ScoringParams:
    """The same parameters for a request that is about its prompt too."""
    same = {field.name: getattr(params, field.name) for field in fields(SamplingParams)}
    return ScoringParams(**same, score_prompt=score_prompt, answers=answers)


def scores_of(tokens: Sequence[int], events: Iterable[Event]) -> Scores:
    """The scores of a prompt of these tokens: the fold of its events. Raises BackendError where it failed."""
    logprobs: list[TokenLogprob] = []
    for event in events:
        if isinstance(event, FinishEvent):
            if event.reason is not FinishReason.LENGTH:  # where nothing is generated every other end is early
                raise BackendError(f"The prompt could not be scored: {event.error or event.reason}.")
            return Scores(tuple(tokens), tuple(logprobs), event.usage, event.timings)
        if event.logprob is not None:
            logprobs.append(event.logprob)
    raise BackendError("A request's events ended without a finish event.")
