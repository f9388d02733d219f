"""Prompts that are scored: log-probabilities of a prompt's own tokens, beside an answer or instead of one.

OpenAI's text completions have them (`echo` with `logprobs`), and evaluations use them to compare texts.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from foretoken.types import SamplingParams, TokenEvent


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


def with_scores(params: SamplingParams, *, score_prompt: bool, answers: bool) -> ScoringParams:
    """The same parameters for a request that is about its prompt too."""
    same = {field.name: getattr(params, field.name) for field in fields(SamplingParams)}
    return ScoringParams(**same, score_prompt=score_prompt, answers=answers)
