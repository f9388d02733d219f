"""A text that flips between copying and noise every 200 tokens: `auto` follows it, in virtual time.

Copying is compared with settings that always draft, noise with never drafting. What a draft across the end of
a passage costs depends on where its rounds happen to fall, so copying is compared over several passages.
"""

from __future__ import annotations

import random
from functools import cache

import pytest

from foredraft.bench.slices import whole
from foredraft.bench.trace import Trace
from lab.flip import FlippingText, Kind, Phases, flipping_text
from virtual_time import CURVES, VOCABULARY, curve, noise, trace_set, virtual_engine

ALWAYS_ON = ("suffix", "ngram-simple")
LENGTH = 200
PASSAGES = 3
TEXTS = 3


@cache
def texts() -> tuple[FlippingText, ...]:
    made = []
    for seed in range(TEXTS):
        rng = random.Random(1000 + seed)
        passages = [noise(LENGTH, rng) for _ in range(PASSAGES)]
        first: Kind = "random" if seed % 2 else "copy"
        made.append(flipping_text(passages, range(VOCABULARY), seed=seed, first=first))
    return tuple(made)


@cache
def plain_rounds(name: str, speculation: str) -> tuple[tuple[float, ...], ...]:
    """For each text what its phases take, in plain rounds; one engine says one text after the other."""
    traces = trace_set([Trace(str(i), "flip", text.prompt, text.output) for i, text in enumerate(texts())])
    v1_s = curve(name).v1_ms / 1e3
    with virtual_engine(traces, curve(name), speculation) as (engine, model):
        return tuple(
            tuple(seconds / v1_s for seconds in whole(Phases(engine, text, model.clock))) for text in texts()
        )


def of_kind(name: str, speculation: str, kind: Kind, *, after: int = 0) -> list[float]:
    """The phases of one kind, of the texts from the `after`-th on."""
    return [
        rounds
        for text, taken in list(zip(texts(), plain_rounds(name, speculation), strict=True))[after:]
        for phase, rounds in zip(text.phases, taken, strict=True)
        if phase.kind == kind
    ]


@pytest.mark.parametrize("name", CURVES)
def test_noise_is_decoded_as_fast_as_without_speculation(name: str) -> None:
    noisy = of_kind(name, "auto", "random")
    assert sum(noisy) <= LENGTH * len(noisy) / 0.97
    # One draft of 63 tokens across the end of a passage costs a MoE 13 rounds: that it ends cannot be known.
    assert max(noisy) <= LENGTH / (0.95 if name != "moe" else 0.93)


@pytest.mark.parametrize("name", CURVES)
@pytest.mark.parametrize("speculation", ALWAYS_ON)
def test_copying_is_as_fast_as_where_everything_is_drafted(name: str, speculation: str) -> None:
    """Once the engine has seen a text: what the first one costs is the next test's."""
    auto, always = (sum(of_kind(name, spec, "copy", after=1)) for spec in ("auto", speculation))
    assert auto <= min(always, LENGTH * PASSAGES * (TEXTS - 1)) / 0.95


@pytest.mark.parametrize("name", CURVES)
def test_the_first_passage_that_an_engine_copies_already_gains(name: str) -> None:
    """What drafts are worth is learnt within it, at no more than two thirds of what there is to gain."""
    to_gain = LENGTH - min(of_kind(name, spec, "copy")[0] for spec in ALWAYS_ON)
    assert LENGTH - of_kind(name, "auto", "copy")[0] >= to_gain / 3


@pytest.mark.parametrize("name", CURVES)
def test_the_text_is_one_that_speculation_should_be_switched_for(name: str) -> None:
    """Copying gains by drafting, and always drafting loses in noise: neither setting is right for both."""
    assert max(of_kind(name, "ngram-simple", "copy")) < 0.5 * LENGTH
    assert sum(of_kind(name, "suffix:min-p=0.005", "random")) > 1.01 * LENGTH * PASSAGES * TEXTS
