"""Where passages come from: answers that the target gives now, recorded ones, or any text.

In an answer the target's choices are the text. In a recorded one, or in a text, they may differ from it; the
draft is then right where it agrees with the target, whatever the text goes on with.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from foredraft.bench.trace import TraceSet
from foredraft.bench.workloads import PromptCase
from foredraft.draft.passages import LEAST_LEAD, Passage, of_answer, of_text
from foredraft.engine.engine import Engine
from foredraft.errors import ConfigError, ContextLengthError
from foredraft.types import FinishReason, SamplingParams

TOGETHER = 4
"""Answers that are generated at once."""

LEAST_TEXT = 64
"""Tokens of the shortest text from which anything follows."""


def answers(
    engine: Engine, cases: Sequence[PromptCase], temperatures: Sequence[float], *, tokens: int, seed: int
) -> Iterator[list[Passage]]:
    """The passages of each answer, at every temperature; none of a prompt that does not fit."""
    for first in range(0, len(cases), TOGETHER):
        several = range(first, min(first + TOGETHER, len(cases)))
        prompts = [_prompt(engine, cases[number]) for number in several]
        for temperature in temperatures:
            asked: list[tuple[list[int], int, int]] = []
            for number, prompt in zip(several, prompts, strict=True):
                params = SamplingParams(max_tokens=tokens, temperature=temperature, seed=seed + number)
                try:
                    asked.append((prompt, seed + number, engine.add(prompt, params)))
                except ContextLengthError:
                    yield []
            completions = engine.run([request for _, _, request in asked])
            for (prompt, own, _), found in zip(asked, completions, strict=True):
                cut = found.finish_reason is not FinishReason.STOP
                yield list(of_answer(prompt, found.tokens, temperature=temperature, seed=own, cut=cut))


def _prompt(engine: Engine, case: PromptCase) -> list[int]:
    """A model without a chat template continues the prompt."""
    if engine.model.tokenizer.chat_template is None:
        return engine.encode(case.turns[0])
    return engine.encode([{"role": "user", "content": case.turns[0]}])


def recorded(
    traces: TraceSet, temperatures: Sequence[float], *, seed: int, room: int, limit: int
) -> Iterator[list[Passage]]:
    """The passages of each recorded answer."""
    for number, trace in enumerate(traces.traces[:limit]):
        tokens = (*trace.prompt, *trace.output)
        for temperature in temperatures:
            yield list(
                of_text(
                    tokens, temperature=temperature, seed=seed + number, room=room, begin=len(trace.prompt)
                )
            )


def written(
    tokens: Sequence[int], temperatures: Sequence[float], *, seed: int, room: int, limit: int
) -> Iterator[list[Passage]]:
    """Each passage of a text."""
    for temperature in temperatures:
        for passage in islice(of_text(tokens, temperature=temperature, seed=seed, room=room), limit):
            yield [passage]


def check_length(tokens: Sequence[int]) -> None:
    """Raises ConfigError for a text that says nothing."""
    if len(tokens) < LEAST_TEXT:
        raise ConfigError(
            f"The text is too short: it has {len(tokens)} tokens, of which the first {LEAST_LEAD} are only "
            "read.",
            hint=f"Give one of {LEAST_TEXT} tokens at least; some thousands make the figures sure.",
        )
