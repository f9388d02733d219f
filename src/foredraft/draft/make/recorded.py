"""Recorded answers to learn from, and whether they are the model's own."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from foredraft.bench.trace import Trace, TraceSet, read_traces
from foredraft.draft.make.answers import Answer
from foredraft.draft.make.prompts import for_measuring
from foredraft.engine.engine import Engine
from foredraft.errors import ConfigError
from foredraft.types import TokenLogprob

TEMPERATURE = 1.0
"""Recordings do not have it, so answers count as sampled: where a draft is measured against the model's
choices, those are its likeliest tokens and not the text.
"""

SAMPLES = 12
"""Answers that are checked at most, from all over a recording."""

SAMPLE = 64
"""Tokens of each."""

UNLIKELY = 0.01
ALTERNATIVES = 20
"""Likeliest tokens that are looked at: hardly ever have more of them a probability over `UNLIKELY`."""

TEMPERATURES = tuple(number / 10 for number in range(1, 11))
"""At which answers may have been chosen, ascending."""

DEVIATIONS = 3.0
LEEWAY = 0.02
"""Part of all tokens: another quantisation of a model, and penalties, choose somewhat differently."""


def recorded(engine: Engine, path: Path) -> tuple[list[Answer], str]:
    """(the recorded answers of a trace file, without those to prompts that are for measuring; the name of the
    model that they were recorded with). Raises ConfigError if they are clearly not of this model, or if there
    are none.
    """
    traces: TraceSet = read_traces(path)
    if traces.vocab_hash != engine.model.info.vocab_hash:
        raise ConfigError(
            f"{path} holds traces of {traces.model}, which has other tokens than {engine.model.info.name}.",
            hint="Record answers of this model: foredraft bench --record FILE",
        )
    answered = [trace for trace in traces.traces if trace.output]
    if not answered:
        raise ConfigError(
            f"There are no answers in {path}.", hint="Record some: foredraft serve --record FILE"
        )
    measuring = for_measuring(engine.model.tokenizer)
    lengths = {len(prompt) for prompt in measuring}  # what begins with one is a later turn of it
    found = [trace for trace in answered if not any(trace.prompt[:length] in measuring for length in lengths)]
    if not found:
        raise ConfigError(
            f"All answers in {path} are to prompts that ship with Foredraft; they are for measuring, and not "
            "learned from.",
            hint="Record others: foredraft serve --record FILE, or foredraft bench --prompts FILE --record "
            "FILE",
        )
    if not are_own(engine, found):
        raise ConfigError(
            f"The answers in {path}, recorded with {traces.model}, are hardly those of "
            f"{engine.model.info.name}: too many tokens are ones that it does not choose.",
            hint="Record answers of this model: foredraft serve --record FILE",
        )
    return [Answer("trace", TEMPERATURE, trace.prompt, trace.output) for trace in found], traces.model


def are_own(engine: Engine, traces: Sequence[Trace]) -> bool:
    """Whether the model may have written these answers, judged by a sample of them.

    How often an answer has the likeliest token says at which temperature it was chosen. At that the model
    chooses tokens of a probability below `UNLIKELY` as often as the sum of their probabilities; another
    model's text has more of them. What `top_p` and the like cut off makes them fewer. So models that are sure
    of different things can be told apart; small ones that are sure of little cannot (the text of Gemma 3 270M
    passes for that of SmolLM2 135M).
    """
    step = max(1, len(traces) // SAMPLES)
    answers = [scores for trace in traces[::step][:SAMPLES] if (scores := _scores(engine, trace))]
    unlikely, expected = 0, 0.0
    for scores in answers:
        unlikely += sum(score.logprob < math.log(UNLIKELY) for score in scores)
        expected += sum(mass for _, mass in _chances(scores, _temperature(scores)))
    tokens = sum(map(len, answers))
    return unlikely <= expected + DEVIATIONS * math.sqrt(expected + 1.0) + LEEWAY * tokens


def _temperature(scores: Sequence[TokenLogprob]) -> float:
    """The lowest of `TEMPERATURES` at which likeliest tokens are no more than they are in an answer."""
    likeliest = sum(score.logprob >= score.top[0][1] - 1e-6 for score in scores)
    found = (one for one in TEMPERATURES if sum(best for best, _ in _chances(scores, one)) <= likeliest)
    return next(found, TEMPERATURES[-1])


def _chances(scores: Sequence[TokenLogprob], temperature: float) -> Iterator[tuple[float, float]]:
    """For each token of an answer the probabilities of the likeliest one and of all unlikely ones together,
    which is a little too large: of those that are not alternatives none is more likely than the last one.
    """
    power = 1.0 / temperature
    for score in scores:
        chances = [math.exp(value) for _, value in score.top]
        weights = [chance**power for chance in chances]
        rest = max(0.0, 1.0 - sum(chances)) * chances[-1] ** (power - 1.0)
        likely = sum(weight for weight, chance in zip(weights, chances, strict=True) if chance >= UNLIKELY)
        total = sum(weights) + rest
        yield weights[0] / total, 1.0 - likely / total


def _scores(engine: Engine, trace: Trace) -> Sequence[TokenLogprob]:
    """Of the beginning of an answer; none where its prompt does not fit the context."""
    tokens = [*trace.prompt, *trace.output[:SAMPLE]]
    if len(tokens) >= engine.model.info.context_length or not trace.prompt:
        return ()
    return engine.score(tokens, logprobs=ALTERNATIVES).logprobs[len(trace.prompt) - 1 :]
