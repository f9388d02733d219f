"""A text that flips between copying and noise every 200 tokens: `auto` follows it, in virtual time.

Copying is compared with settings that always draft, noise with never drafting. What a draft across the end of
a passage costs depends on where its rounds happen to fall, so copying is compared over several passages.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pytest

from foredraft.bench.curves import find_curve
from lab.flip import LENGTH, PASSAGES, Kind, made_up, replayed

CURVES = ("steep", "flat", "gpu", "cpu-q4_0", "moe")
ALWAYS_ON = ("suffix", "ngram-simple")
TEXTS = 3


@cache
def plain_rounds(name: str, speculation: str) -> Sequence[Sequence[float]]:
    """For each text what its phases take, in plain rounds, with attempts that cost nothing."""
    return replayed(made_up(TEXTS), find_curve(name), speculation, charged=False)


def of_kind(name: str, speculation: str, kind: Kind, *, after: int = 0) -> list[float]:
    """The phases of one kind, of the texts from the `after`-th on."""
    return [
        rounds
        for text, taken in list(zip(made_up(TEXTS), plain_rounds(name, speculation), strict=True))[after:]
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
def test_copying_is_as_fast_as_where_everything_is_drafted(name: str) -> None:
    """Once the engine has seen a text: what the first one costs is the next test's."""
    auto, *always = (sum(of_kind(name, spec, "copy", after=1)) for spec in ("auto", *ALWAYS_ON))
    assert auto <= min(*always, LENGTH * PASSAGES * (TEXTS - 1)) / 0.95


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
