"""A draft model of random weights beside `auto`, in virtual time: found out, it costs next to nothing."""

from __future__ import annotations

from statistics import geometric_mean

import pytest

from foredraft.bench.trace import shipped_traces
from virtual_time import curve, noise_traces, speedups

OVERCONFIDENT, UNSURE = 0.8, 0.1
COSTS = ((0.02, 0.05), (0.04, 0.1), (0.1, 0.2), (0.3, 0.5), (1.0, 1.0))
"""Of a drafted token and of reading 64 tokens, in plain rounds: from a draft model fifty times smaller than
its target to one of the same size.
"""


def useless(token: float, chunk: float, sure: float) -> str:
    return f"auto;useless:token={token},chunk={chunk},sure={sure}"


@pytest.mark.parametrize("sure", [OVERCONFIDENT, UNSURE])
@pytest.mark.parametrize(("token", "chunk"), COSTS)
@pytest.mark.parametrize("name", ["steep", "gpu"])
def test_it_costs_a_text_without_repetitions_at_most_3_percent(
    name: str, token: float, chunk: float, sure: float
) -> None:
    """Over 1,600 tokens. The first answers bear the cost of finding out, a later one that of a probe."""
    found = speedups(noise_traces(16, prompt=100, output=100), curve(name), useless(token, chunk, sure))
    assert geometric_mean(found) >= 0.97
    assert min(found[4:]) >= 0.9


@pytest.mark.parametrize("name", ["steep", "gpu"])
@pytest.mark.parametrize(("token", "chunk"), [COSTS[1], COSTS[3]])
def test_real_answers_keep_what_the_other_drafters_gain(name: str, token: float, chunk: float) -> None:
    traces = shipped_traces()
    alone, beside = (
        geometric_mean(speedups(traces, curve(name), speculation))
        for speculation in ("auto", useless(token, chunk, OVERCONFIDENT))
    )
    assert beside >= 0.97
    assert beside >= 0.97 * alone


def test_a_long_prompt_is_not_read_again_and_again() -> None:
    """It takes 16 plain rounds to read one of these prompts: a tenth of the answer."""
    found = speedups(noise_traces(12, prompt=2000, output=160), curve("steep"), useless(0.3, 0.5, UNSURE))
    assert geometric_mean(found) >= 0.97
