"""Texts that flip, and the time of their phases."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from foredraft.bench.curves import Curve
from foredraft.bench.slices import in_slices, whole
from foredraft.bench.trace import Trace
from foredraft.engine.engine import Engine
from foredraft.errors import BackendError
from foredraft.testing import FakeModel, ScriptedDrafter
from foredraft.types import Logits, Rows
from lab.flip import OPENING, Commits, Phases, flipping_text
from virtual_time import trace_set, virtual_engine

PASSAGES = ([1, 2, 3, 4], [5, 6, 7, 8])
FLAT = Curve("flat", {1: 1.0, 64: 1.0}, 10.0)


@pytest.mark.parametrize("first", ["copy", "random"])
def test_copies_and_noise_take_turns(first: str) -> None:
    text = flipping_text(PASSAGES, range(100, 200), seed=1, first="copy" if first == "copy" else "random")
    assert text.prompt == (1, 2, 3, 4, 5, 6, 7, 8)
    assert text.phases[0].start == OPENING
    assert text.phases[-1].end == len(text.output)
    assert [phase.kind for phase in text.phases] == (
        ["copy", "random"] * 2 if first == "copy" else ["random", "copy"] * 2
    )
    said = [text.output[phase.start : phase.end] for phase in text.phases]
    copied, noise = (said[::2], said[1::2]) if first == "copy" else (said[1::2], said[::2])
    assert copied == [(1, 2, 3, 4), (5, 6, 7, 8)]
    assert all(token >= 100 for tokens in noise for token in tokens)
    assert len(set(noise)) == 2


def test_the_seed_chooses_the_noise() -> None:
    one, same, other = (flipping_text(PASSAGES, range(100, 200), seed=seed) for seed in (1, 1, 2))
    assert one == same
    assert one.output != other.output


def test_plain_decoding_takes_a_round_for_each_token() -> None:
    text = flipping_text(PASSAGES, range(100, 200), seed=1)
    traces = trace_set([Trace("t", "", text.prompt, text.output)])
    with virtual_engine(traces, FLAT, "off") as (engine, model):
        assert whole(Phases(engine, text, model.clock)) == pytest.approx([0.04] * 4)


def test_the_time_of_a_round_is_shared_by_its_tokens() -> None:
    """The first token is the prompt's; then rounds of a draft of 3 and the target's own token."""
    output = tuple(range(10, 19))
    script = ScriptedDrafter(lambda history: output[len(history) - 1 :][:3])
    traces = trace_set([Trace("t", "", (1,), output)])
    with virtual_engine(traces, FLAT, "off") as (_, model), Engine(model, drafters=[script]) as engine:
        [(_, (tokens, times))] = in_slices({"": Commits(engine, (1,), len(output), model.clock)}, 0.0)
    assert tokens == output
    assert times == pytest.approx([0.0, *(0.0025 * i for i in range(1, 9))])


def test_a_model_that_says_something_else_is_noticed() -> None:
    text = flipping_text(PASSAGES, range(100, 200), seed=1)
    with Engine(FakeModel()) as engine, pytest.raises(BackendError, match="did not say the text"):
        whole(Phases(engine, text, lambda: 0.0))


def test_a_request_that_fails_is_an_error() -> None:
    class Failing(FakeModel):
        def forward(self, batch: Sequence[Rows]) -> Logits:
            raise BackendError("broken")

    with Engine(Failing()) as engine, pytest.raises(BackendError, match="broken"):
        Commits(engine, (1, 2), 5, lambda: 0.0).go_on(1.0)
