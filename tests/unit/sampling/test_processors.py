"""Each processor against a plain reading of its definition, and their order against vLLM's."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.errors import BackendError, RequestError
from foredraft.sampling import processors
from foredraft.sampling.history import TokenCounts
from foredraft.sampling.processors import (
    RowRules,
    keep_top_k,
    keep_top_p,
    mass,
    peak,
    probabilities,
    survivors,
)
from foredraft.types import Logits, Probs, SamplingParams


def row_of(*values: float) -> Logits:
    return np.array(values, np.float32)


def counts_of(prompt: list[int], output: list[int], size: int = 5) -> TokenCounts:
    return TokenCounts(size, prompt).extended(output)


def oracle(row: Logits, params: SamplingParams) -> Probs:
    """Temperature, min-p, top-k, top-p one after the other over the whole vocabulary, by sorting."""
    scores = row.astype(np.float64) / params.temperature
    order = sorted(range(row.size), key=lambda token: (-scores[token], token))
    probs = np.exp(scores - scores.max())
    kept = [token for token in order if params.min_p <= 0 or row[token] >= floor_of(row, params)]
    if params.top_k > 0:
        kept = kept[: params.top_k]
    total, ahead = sum(probs[token] for token in kept), 0.0
    nucleus: list[int] = []
    for token in kept:
        if nucleus and params.top_p < 1.0 and ahead >= params.top_p * total:
            break
        nucleus.append(token)
        ahead += probs[token]
    out = np.zeros(row.size)
    out[nucleus] = probs[nucleus]
    return np.asarray(out / out.sum())


def floor_of(row: Logits, params: SamplingParams) -> np.float32:
    return np.float32(float(row.max()) + params.temperature * math.log(params.min_p))


def test_ban_leaves_the_row_alone_and_the_token_impossible() -> None:
    row = row_of(1, 2, 3)
    out = processors.ban(row, np.array([2]))
    assert out.tolist() == [1, 2, -math.inf]
    assert row.tolist() == [1, 2, 3]


def test_bias_is_added_and_minus_infinity_bans() -> None:
    out = processors.add_bias(row_of(1, 2, 3), np.array([0, 2]), row_of(2.5, -math.inf))
    assert out.tolist() == [3.5, 2, -math.inf]


def test_repetition_counts_prompt_and_output_and_minds_the_sign() -> None:
    out = processors.penalize_repetition(row_of(2, -2, 2, -2, 0), counts_of([0, 1], [3]), 2.0)
    assert out.tolist() == [1, -4, 2, -4, 0]


def test_frequency_and_presence_count_output_only() -> None:
    out = processors.penalize_counts(row_of(0, 0, 0, 0, 0), counts_of([0, 0], [1, 1, 2]), 0.5, 0.25)
    assert out.tolist() == [0, -1.25, -0.75, 0, 0]


def test_rules_apply_in_vllms_order() -> None:
    # Bias comes before the repetition penalty, which comes before the two that subtract.
    params = SamplingParams(
        logit_bias={1: 3.0}, repetition_penalty=2.0, frequency_penalty=0.5, presence_penalty=1.0
    )
    rules = RowRules(params)
    assert rules.active
    assert rules.counting
    out = rules.apply(row_of(4, 1, 0, 0, 9), np.array([4]), counts_of([0], [1, 1]))
    assert out.tolist() == [2, (1 + 3) / 2 - 2 * 0.5 - 1.0, 0, 0, -math.inf]


def test_rules_without_effect_return_the_row_itself() -> None:
    row = row_of(1, 2)
    rules = RowRules(SamplingParams(temperature=0.7, top_k=3))
    assert not rules.active
    assert rules.apply(row, None, None) is row


def test_counts_extended_is_a_new_value() -> None:
    base = counts_of([1], [2])
    longer = base.extended([2, 3])
    assert longer.output.tolist() == [0, 0, 2, 1, 0]
    assert base.output.tolist() == [0, 0, 1, 0, 0]
    assert longer.seen.tolist() == [False, True, True, True, False]
    assert base.extended([]) is base


def test_peak_names_the_trouble() -> None:
    assert peak(row_of(1, 3, 2)) == 3.0
    with pytest.raises(BackendError, match="not numbers"):
        peak(row_of(1, math.nan, 2))
    with pytest.raises(RequestError, match="No token"):
        peak(row_of(-math.inf, -math.inf))


def test_top_k_keeps_exactly_k_preferring_low_ids_among_equals() -> None:
    tokens, scores = np.array([3, 5, 7, 9]), np.array([1.0, 2.0, 1.0, 1.0])
    kept, kept_scores = keep_top_k(tokens, scores, 2)
    assert kept.tolist() == [3, 5]
    assert kept_scores.tolist() == [1.0, 2.0]
    assert keep_top_k(tokens, scores, 4)[0].tolist() == [3, 5, 7, 9]


@pytest.mark.parametrize(
    ("p", "expected"),
    [
        (0.0, [1]),
        (0.3, [1]),
        (0.5, [1]),
        (0.51, [1, 3]),
        (0.8, [1, 3]),
        (0.82, [0, 1, 3]),
        (0.999, [0, 1, 2, 3]),
    ],
)
def test_top_p_is_the_smallest_set_that_reaches_p(p: float, expected: list[int]) -> None:
    probs = np.array([0.125, 0.5, 0.0625, 0.3125])
    assert keep_top_p(np.arange(4), np.log(probs), p)[0].tolist() == expected


def test_top_p_breaks_ties_by_id() -> None:
    assert keep_top_p(np.array([2, 4, 6, 8]), np.zeros(4), 0.5)[0].tolist() == [2, 4]


def test_min_p_is_relative_to_the_best() -> None:
    row = np.log(row_of(0.5, 0.2, 0.06, 0.04, 0.2)).astype(np.float32)
    tokens, _ = survivors(row, SamplingParams(temperature=1.0, min_p=0.1))
    assert tokens.tolist() == [0, 1, 2, 4]


@given(
    seed=st.integers(0, 2**32),
    size=st.sampled_from([1, 2, 7, 300, 3000]),
    scale=st.sampled_from([0.0, 0.3, 2.0, 8.0]),
    temperature=st.sampled_from([0.1, 0.8, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 5, 40, 5000]),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 0.0]),
    min_p=st.sampled_from([0.0, 0.05, 1.0]),
    rounded=st.booleans(),
)
def test_survivors_equal_the_oracle(
    seed: int,
    size: int,
    scale: float,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    rounded: bool,
) -> None:
    row = (scale * np.random.default_rng(seed).standard_normal(size)).astype(np.float32)
    if rounded:  # many ties
        row = np.round(row)
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    tokens, scores = survivors(row, params)
    assert (np.diff(tokens) > 0).all()
    actual, expected = probabilities((tokens, scores), size), oracle(row, params)
    # A nucleus may differ by a token whose probability ahead equals p up to rounding.
    support = int(((actual > 0) != (expected > 0)).sum())
    assert support <= (1 if top_p < 1.0 else 0)
    if support == 0:
        np.testing.assert_allclose(actual, expected, atol=1e-12)


def test_mass_is_the_partition_function() -> None:
    row = np.random.default_rng(0).standard_normal(20_000).astype(np.float32)
    best = float(row.max())
    expected = np.exp((row.astype(np.float64) - best) / 0.7).sum()
    assert mass(row, best, 0.7) == pytest.approx(expected, rel=1e-12)


def test_top_tokens_are_sorted_with_ties_by_id() -> None:
    row = row_of(1, 3, 3, 0, 2)
    assert list(processors.top_tokens(row, 4)) == [1, 2, 4, 0]
    assert list(processors.top_tokens(row, 0)) == []
    assert list(processors.top_tokens(row, 99)) == [1, 2, 4, 0, 3]
