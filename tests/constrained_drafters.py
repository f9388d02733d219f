"""Drafters of every kind for a `FakeModel`, with what the engine gives them: for bound answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from foredraft.config import Stage
from foredraft.engine.speculation import AUTO_STAGES
from foredraft.planner import StaticPlanner
from foredraft.protocols import Drafter, Model, Planner
from foredraft.registry import create_drafter
from foredraft.sampling.coupled import CoupledSampler
from foredraft.sampling.thought import answer_guide
from foredraft.testing import FakeModel, FakeTokenizer, ScriptedDrafter, drafter_context
from foredraft.types import Draft, Logits
from planner_doubles import auto_planner

STAGES = {
    "grammar": [Stage("grammar")],
    "suffix": [Stage("suffix")],
    "n-grams": [
        Stage("ngram-simple", {"n": "2", "m": "5"}),
        Stage("ngram-mod", {"n": "2", "min": "0", "max": "5"}),
    ],
    "recycle": [Stage("recycle", {"min-p": "0"})],
    "draft-model": [Stage("draft-model", {"model": "small", "max": "5"})],
    "auto": list(AUTO_STAGES),
}
PLANNERS: dict[str, Callable[[], Planner]] = {"static": StaticPlanner, "auto": auto_planner}


class Drafters:
    """Makes drafters for a model. `small`: the language of the draft model; `guesses`: what noise is of."""

    def __init__(self, small: Callable[[Sequence[int]], Logits], guesses: Sequence[int]) -> None:
        self._small = small
        self._guesses = guesses

    def named(self, name: str, model: Model) -> list[Drafter]:
        """Those of `STAGES`, or "noise"."""
        if name == "noise":
            return [ScriptedDrafter(self._noise, name="noise")]
        return [self.make(stage, model) for stage in STAGES[name]]

    def make(self, stage: Stage, model: Model) -> Drafter:
        """A drafter with what the engine gives it."""
        tokenizer, size = model.tokenizer, model.info.vocab_size
        assert isinstance(tokenizer, FakeTokenizer)

        def load(path: str, *, sequences: int, context_length: int) -> Model:
            small = FakeModel(
                size, logits=self._small, sequences=sequences, context_length=context_length, name=path
            )
            small.tokenizer = tokenizer
            return small

        sampler = CoupledSampler(size, tokenizer.end_tokens, lambda params: answer_guide(params, tokenizer))
        return create_drafter(stage, replace(drafter_context(model), sampler=sampler, load_model=load))

    def _noise(self, tokens: Sequence[int]) -> Draft:
        """A tree of guesses: deterministic, and different at every length."""
        chosen = np.random.default_rng(len(tokens)).choice(self._guesses, 9)
        return Draft(tuple(map(int, chosen)), "noise", parents=(-1, -1, -1, 0, 1, 2, 3, 4, 5))
