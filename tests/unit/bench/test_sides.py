"""Engines as sides of a comparison: what of a completion becomes a sample, and what is forgotten when."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foredraft import Engine
from foredraft.bench.results import Run
from foredraft.bench.sides import EngineSide, runs, sample_of
from foredraft.errors import BackendError
from foredraft.testing import FakeModel, markov_logits
from foredraft.types import SamplingParams

PROMPT = [{"role": "user", "content": "abc"}]
PARAMS = SamplingParams(max_tokens=40, ignore_eos=True)


def looping() -> Engine:
    return Engine(FakeModel(6, logits=markov_logits(6, order=1, scale=8.0)))


def test_rounds_are_read_from_the_origins() -> None:
    first, target, suffix, other = "target", "target", "suffix", "prediction"
    assert runs([first]) == ()
    assert runs([first, target, target]) == (Run(0), Run(0))
    assert runs([first, suffix, suffix, target, target, other, target]) == (
        Run(2, suffix),
        Run(0),
        Run(1, other),
    )
    assert runs([first, target, suffix, suffix]) == (Run(0), Run(2, suffix))  # cut inside its draft


@pytest.mark.parametrize("speculation", ["off", "ngram-simple:n=3,m=4"])
def test_a_sample_agrees_with_its_completion(speculation: str) -> None:
    engine = looping()
    engine.set_speculation(speculation)
    completion = engine.generate(PROMPT, PARAMS)
    sample = sample_of(completion)
    assert sample.tokens == completion.tokens
    assert sample.count == len(completion.tokens) == 40
    assert (sample.text, sample.exact) == (completion.text, True)
    assert sample.rounds == len(sample.runs)
    assert sum(run.accepted for run in sample.runs) == sample.accepted == sum(sample.accepted_by_depth)
    assert list(sample.spent_ms) == ["draft", "verify", "sample", "other"]
    assert sample.spent_ms["verify"] > 0
    assert sum(sample.spent_ms.values()) <= sample.decode_ms
    assert (sample.accepted > 0) is (speculation != "off")
    assert sample.drafts <= sample.rounds


def test_a_failed_answer_is_an_error() -> None:
    completion = replace(looping().generate(PROMPT, PARAMS), error="the device is gone")
    with pytest.raises(BackendError, match="the device is gone"):
        sample_of(completion)


def test_a_restart_forgets_what_drafters_share_between_requests() -> None:
    """ngram-mod keeps one pool for all requests: the same prompt would be remembered."""
    engine = looping()
    side = EngineSide("ngram-mod:n=4,min=0", engine)
    engine.set_speculation(side.name)
    first = side.answer(PROMPT, PARAMS)
    remembered = side.answer(PROMPT, PARAMS)
    side.restart()
    again = side.answer(PROMPT, PARAMS)
    assert remembered.accepted > first.accepted
    assert (again.drafted, again.accepted, again.tokens) == (first.drafted, first.accepted, first.tokens)


def test_closing_a_side_closes_its_engine() -> None:
    side = EngineSide("off", looping())
    model = side.engine.model
    assert isinstance(model, FakeModel)
    side.close()
    assert model.closed
