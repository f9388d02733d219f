"""Whether a head that was made is worth using on this machine: scored on answers that it has not seen, with
the machine's own V(n) and the head's own price.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from foredraft.backends.llamacpp.features import layer
from foredraft.draft.make.answers import Answer, never
from foredraft.draft.passages import Passage, of_answer, of_text
from foredraft.draft.reading import HeadGuesses
from foredraft.draft.result import Result, measure_here, result_of
from foredraft.draft.score import Scorer
from foredraft.engine.engine import Engine
from foredraft.engine.options import EngineOptions, model_options
from foredraft.errors import ConfigError
from foredraft.planner import AutoPlanner
from foredraft.planner.cost import CostCurve
from foredraft.registry import backend_for

PASSAGES = 12
"""That are scored at most."""

LEAST_PASSAGES = 3


def judge(
    model: Path,
    head: Path,
    layers: Sequence[int],
    answers: Sequence[Answer],
    loading: EngineOptions,
    *,
    over: Callable[[], bool] = never,
) -> Result:
    """Score a head on answers of the model, on a few of them where the time is `over`. Raises ConfigError
    where none is long enough, and what loading raises.
    """
    passages = list(islice(_passages(answers), PASSAGES))
    if not passages:
        raise ConfigError("There is no answer to score the head on.", hint="Give it more time (--minutes).")
    curve = _curve(model, loading)
    options = model_options({**loading, "probe": False, "sequences": 1}).model
    watch = tuple(layer(number) for number in layers)
    target = backend_for(model).load(model, replace(options, watch=watch))
    try:
        trained = target.load_head(head, sequences=1)
        try:
            scorer = Scorer(target, HeadGuesses(trained), trained.needs)
            for number, passage in enumerate(passages):
                if number >= LEAST_PASSAGES and over():
                    passages = passages[:number]
                    break
                scorer.add(passage)
        finally:
            trained.close()
        measure_here(curve, target, sum(len(passage.tokens) for passage in passages) // len(passages))
        about = {
            "model": target.info.name,
            "scored on": f"{len(passages)} passages of answers it has not seen",
        }
        return result_of(target.info.name, head.name, about, scorer, curve)
    finally:
        target.close()


def _passages(answers: Sequence[Answer]) -> Iterator[Passage]:
    """The first passage of each answer. What the model chose in greedy ones is the text; in others a draft is
    right where it agrees with the model.
    """
    for answer in answers:
        if answer.temperature == 0.0:
            yield from islice(of_answer(answer.prompt, answer.answer, temperature=0.0, seed=1, cut=True), 1)
    for answer in answers:
        if answer.temperature != 0.0:
            room, begin = len(answer.tokens), len(answer.prompt)
            yield from islice(of_text(answer.tokens, temperature=0.0, seed=1, room=room, begin=begin), 1)


def _curve(model: Path, loading: EngineOptions) -> CostCurve:
    """What forwards cost here, as `auto` measures it when it is loaded."""
    options: EngineOptions = {**loading, "remember": False}
    with Engine.load(model, speculate="auto", **options) as engine:
        assert isinstance(engine.planner, AutoPlanner), "auto has one"
        return engine.planner.cost
