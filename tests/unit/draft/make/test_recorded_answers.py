"""Whether recorded answers are a model's own."""

from __future__ import annotations

import math
from itertools import pairwise
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from foredraft.bench.trace import Trace
from foredraft.draft.make.recorded import ALTERNATIVES, are_own
from foredraft.engine.engine import Engine
from foredraft.types import TokenLogprob

SIZE = 200


class Chain:
    """A model whose next token depends on the last one only, with the chances of row `last` of `chances`."""

    def __init__(self, seed: int, sharpness: float = 4.0) -> None:
        logits = sharpness * np.random.default_rng(seed).standard_normal((SIZE, SIZE))
        self.chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        self.model = SimpleNamespace(info=SimpleNamespace(context_length=512))

    def writes(self, temperature: float, *, top: int = SIZE, answers: int = 20) -> list[Trace]:
        rng = np.random.default_rng(1)
        return [self._answer(rng, number, temperature, top) for number in range(answers)]

    def _answer(self, rng: np.random.Generator, number: int, temperature: float, top: int) -> Trace:
        tokens = [number]
        while len(tokens) < 65:
            row = self.chances[tokens[-1]].copy()
            row[np.argsort(row)[:-top]] = 0.0
            if temperature:
                row = row ** (1 / temperature)
                tokens.append(int(rng.choice(SIZE, p=row / row.sum())))
            else:
                tokens.append(int(row.argmax()))
        return Trace(str(number), "use", (number,), tuple(tokens[1:]))

    def score(self, tokens: list[int], *, logprobs: int) -> SimpleNamespace:
        assert logprobs == ALTERNATIVES
        found = []
        for last, token in pairwise(tokens):
            row = self.chances[last]
            top = tuple((int(one), math.log(row[one])) for one in np.argsort(-row)[:logprobs])
            found.append(TokenLogprob(token, math.log(row[token]), top))
        return SimpleNamespace(logprobs=tuple(found))

    def wrote(self, traces: list[Trace]) -> bool:
        return are_own(cast("Engine", self), traces)


@pytest.mark.parametrize("temperature", [0.0, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("top", [5, SIZE])
@pytest.mark.parametrize("sharpness", [1.0, 4.0, 10.0])
def test_its_own_answers_are(temperature: float, top: int, sharpness: float) -> None:
    model = Chain(0, sharpness)
    assert model.wrote(model.writes(temperature, top=top))


@pytest.mark.parametrize("temperature", [0.0, 0.8, 1.0])
def test_those_of_another_model_are_not(temperature: float) -> None:
    assert not Chain(0).wrote(Chain(1).writes(temperature))


def test_those_of_nearly_the_same_model_are() -> None:
    """Such as another quantisation."""
    model, near = Chain(0), Chain(0)
    near.chances = model.chances**1.05
    near.chances /= near.chances.sum(1, keepdims=True)
    assert model.wrote(near.writes(0.8))


def test_what_does_not_fit_the_context_says_nothing() -> None:
    other = [Trace("1", "use", tuple(range(150)) * 4, (1, 2, 3))]
    assert Chain(0).wrote(other)
