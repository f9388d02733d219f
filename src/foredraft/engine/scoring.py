"""Scoring prompts: log-probabilities of a prompt's own tokens, with an answer or without one.

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
    """Sampling parameters of a request whose prompt may be scored. `score_prompt`: a PromptEvent comes for
    each token of the prompt but the first, with `logprobs` alternatives. `answers`: whether anything is
    generated.
    """

    score_prompt: bool = False
    answers: bool = True


@dataclass(frozen=True, slots=True)
class PromptEvent(TokenEvent):
    """A token of the prompt and its log-probability after those before it. All come before the answer."""


@dataclass(frozen=True, slots=True)
class Scores:
    """A scored prompt. `logprobs[i]` is that of `tokens[i + 1]`: the first token has none, as nothing comes
    before it.
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
    """The same parameters, for a request whose prompt may be scored."""
    same = {field.name: getattr(params, field.name) for field in fields(SamplingParams)}
    return ScoringParams(**same, score_prompt=score_prompt, answers=answers)


def scores_of(tokens: Sequence[int], events: Iterable[Event]) -> Scores:
    """Fold the events of a scored prompt. Raises BackendError where scoring failed."""
    logprobs: list[TokenLogprob] = []
    for event in events:
        if isinstance(event, FinishEvent):
            if event.reason is not FinishReason.LENGTH:  # where nothing is generated every other end is early
                raise BackendError(f"The prompt could not be scored: {event.error or event.reason}.")
            return Scores(tuple(tokens), tuple(logprobs), event.usage, event.timings)
        if event.logprob is not None:
            logprobs.append(event.logprob)
    raise BackendError("A request's events ended without a finish event.")
