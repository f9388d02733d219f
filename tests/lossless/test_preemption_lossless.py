"""Same tokens where the KV cache is full again and again, on the real default model: what a request had is
computed anew in other chunks, and in other company.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from foredraft import Engine, SamplingParams
from foredraft.errors import OutOfKVError
from foredraft.types import Completion, Logits, Rows
from matrix import nightly

pytestmark = pytest.mark.model

TOKENS = 40
LINE = "Item {}: a grey box in the kitchen, weight {} kg, checked on day {}."
PROMPTS = [
    "The ferry left the island before sunrise, and",
    "\n".join(LINE.format(number, 3 + number % 7, 1 + number % 28) for number in range(1, 20)) + "\nItem 20:",
    "def add(a, b):\n    return a + b\n\ndef subtract(a, b):\n",
    "The ferry left the island. " * 40 + "The",
    "1 2 3 4 5 6 7 8 1 2 3 4 5 6 7 8 1 2 3",
    "Once upon a time a baker counted the lamps along the pier, and there were nine of them.",
]


def params(temperature: float) -> SamplingParams:
    return SamplingParams(temperature=temperature, seed=5, max_tokens=TOKENS, ignore_eos=True)


@pytest.fixture(scope="module")
def engine(model_path: Path, shared_cache: Path) -> Iterator[Engine]:
    with Engine.load(
        model_path,
        speculate="off",
        threads=1,
        gpu_layers=0,
        sequences=3,
        context_length=1024,
        cache_dir=shared_cache,
        remember=False,
    ) as loaded:
        yield loaded


@contextmanager
def full_at_times(engine: Engine, seed: int, most: int) -> Iterator[None]:
    """One forward in eight or so finds no room, until a request has made some: `most` in all."""
    rng, forward = random.Random(seed), engine.model.forward
    until = 0  # preemptions, for which forwards fail

    def short(batch: Sequence[Rows]) -> Logits:
        nonlocal until
        if engine.running_count > 1 and engine.preemptions - began < most and rng.random() < 0.12:
            until = engine.preemptions + 1
        if engine.preemptions < until and engine.running_count > 1:
            raise OutOfKVError("injected")
        return forward(batch)

    began = engine.preemptions
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.model, "forward", short)
        yield


def answers(engine: Engine, temperature: float) -> list[Completion]:
    return engine.run([engine.add(prompt, params(temperature)) for prompt in PROMPTS])


@pytest.mark.parametrize("temperature", [pytest.param(0.0, marks=nightly), 0.8])
def test_preempted_answers_are_those_of_requests_alone(engine: Engine, temperature: float) -> None:
    assert engine.model.capabilities.batch_invariant, engine.model.capabilities.invariance_note
    engine.set_speculation("off")
    alone = [engine.generate(prompt, params(temperature)).tokens for prompt in PROMPTS]
    preempted = 0
    for seed, speculate in enumerate(("off", "auto", "suffix;ngram-simple:n=2,m=16")):
        engine.set_speculation(speculate)
        with full_at_times(engine, seed, most=25):
            found = answers(engine, temperature)
        assert [answer.tokens for answer in found] == alone, speculate
        assert all(answer.speculation.exact for answer in found)
        preempted += sum(answer.speculation.preemptions for answer in found)
    assert preempted > 8
