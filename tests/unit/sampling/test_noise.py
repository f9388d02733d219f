"""Keyed noise: uniform, independent in every coordinate, and never a different value tomorrow."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.sampling.noise import (
    ACCEPT,
    DRAFT,
    MASK,
    MATCH,
    MAX_GUMBEL,
    RESIDUAL,
    SLICE,
    Floats,
    _to_gumbel,
    _to_uniform,
    _words,
    depth_stream,
    finalise,
    gumbel_argmax,
    gumbel_choice,
    largest_floor,
    make_key,
    uniform,
)

TOKENS = np.arange(50_000)

GOLDEN_UNIFORM = [0.17541561601846467, 0.4732158221135335, 0.6317406535047506]
GOLDEN_GUMBEL = [2.776166894584037, -0.8074567891632575, -0.32479091565261303]


def chi_square_limit(freedom: int) -> float:
    """A bound exceeded with probability about 1e-6 (Wilson and Hilferty's approximation)."""
    return freedom * (1 - 2 / (9 * freedom) + 4.753 * math.sqrt(2 / (9 * freedom))) ** 3


def chi_square(counts: npt.NDArray[Any], expected: npt.NDArray[Any]) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


def test_finaliser_is_splitmix64s() -> None:
    # The first outputs of SplitMix64 seeded with 1234567, from its reference implementation.
    golden = 0x9E3779B97F4A7C15
    words = [finalise((1234567 + i * golden) & MASK) for i in range(1, 4)]
    assert words == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_values_are_fixed_for_ever() -> None:
    # Text generated with a seed must be reproducible by a later version.
    tokens = np.array([0, 1, 49_151])
    np.testing.assert_allclose(uniform(0, 0, tokens), GOLDEN_UNIFORM, rtol=0, atol=0)
    np.testing.assert_allclose(_to_gumbel(_words(make_key(42, 7, DRAFT), tokens)), GOLDEN_GUMBEL, rtol=1e-14)


def test_scalar_and_vector_hash_agree() -> None:
    key = make_key(5, 6, 7)
    words = [finalise((key + (token + 1) * 0x9E3779B97F4A7C15) & MASK) for token in range(20)]
    expected = [((word >> 12) + 0.5) * 2.0**-52 for word in words]
    assert uniform(5, 6, np.arange(20), 7).tolist() == expected


def test_stays_inside_the_open_interval() -> None:
    smallest, largest = _to_uniform(np.array([0, MASK], np.uint64)).tolist()
    assert 0.0 < smallest < 1e-15
    assert 1.0 - 1e-15 < largest < 1.0
    assert _to_gumbel(np.array([MASK], np.uint64))[0] == pytest.approx(MAX_GUMBEL, abs=1e-9)


@pytest.mark.parametrize("coordinate", ["tokens", "positions", "seeds", "streams"])
def test_uniform_along_every_coordinate(coordinate: str) -> None:
    one = np.array([17])
    draws: dict[str, Callable[[], Floats]] = {
        "tokens": lambda: uniform(1, 2, TOKENS),
        "positions": lambda: np.concatenate([uniform(1, i, one) for i in range(5000)]),
        "seeds": lambda: np.concatenate([uniform(i, 2, one) for i in range(5000)]),
        "streams": lambda: np.concatenate([uniform(1, 2, one, i) for i in range(5000)]),
    }
    values = draws[coordinate]()
    counts = np.histogram(values, bins=100, range=(0, 1))[0].astype(float)
    assert chi_square(counts, np.full(100, len(values) / 100)) < chi_square_limit(99)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((1, 2, MATCH), (1, 3, MATCH)),
        ((1, 2, MATCH), (2, 2, MATCH)),
        ((1, 2, MATCH), (2, 1, MATCH)),
        ((1, 2, MATCH), (1, 2, DRAFT)),
        ((1, 2, ACCEPT), (1, 2, RESIDUAL)),
        ((1, 2, depth_stream(DRAFT, 0)), (1, 2, depth_stream(DRAFT, 1))),
        ((0, 0, MATCH), (-1, 0, MATCH)),
    ],
)
def test_keys_give_independent_noise(one: tuple[int, int, int], other: tuple[int, int, int]) -> None:
    first, second = (uniform(seed, position, TOKENS, stream) for seed, position, stream in (one, other))
    counts = np.histogram2d(first, second, bins=10, range=[[0, 1], [0, 1]])[0].ravel()
    assert chi_square(counts, np.full(100, len(TOKENS) / 100)) < chi_square_limit(99)


def test_neighbouring_tokens_are_independent() -> None:
    values = uniform(9, 9, TOKENS)
    counts = np.histogram2d(values[:-1], values[1:], bins=10, range=[[0, 1], [0, 1]])[0].ravel()
    assert chi_square(counts, np.full(100, (len(TOKENS) - 1) / 100)) < chi_square_limit(99)


def test_no_collisions_between_streams_positions_and_depths() -> None:
    keys = {
        make_key(0, position, depth_stream(stream, depth))
        for position in range(40)
        for stream in (DRAFT, ACCEPT, RESIDUAL)
        for depth in range(40)
    }
    assert len(keys) == 40 * 3 * 40


def test_gumbel_argmax_samples_the_softmax() -> None:
    probs = np.array([0.5, 0.25, 0.15, 0.07, 0.03])
    tokens = np.arange(5)
    counts = np.zeros(5)
    for position in range(20_000):
        counts[gumbel_argmax(tokens, np.log(probs), make_key(3, position))] += 1
    assert chi_square(counts, 20_000 * probs) < chi_square_limit(4)


@given(
    seed=st.integers(0, 2**32),
    size=st.sampled_from([1, 2, 100, 129, 5000, SLICE, SLICE + 1, 30_000]),
    scale=st.sampled_from([0.0, 0.01, 1.0, 3.0, 10.0]),
    temperature=st.sampled_from([1e-4, 0.1, 0.8, 1.0, 5.0, 100.0]),
    holes=st.booleans(),
)
def test_gumbel_choice_equals_full_evaluation(
    seed: int, size: int, scale: float, temperature: float, holes: bool
) -> None:
    rng = np.random.default_rng(seed)
    row = (scale * rng.standard_normal(size)).astype(np.float32)
    if holes and size > 1:
        row[rng.permutation(size)[: size - 1 - size // 10]] = -np.inf
    key = make_key(seed, 11)
    scores = row.astype(np.float64) / temperature
    assert gumbel_choice(row, temperature, key) == gumbel_argmax(np.arange(size), scores, key)


@given(seed=st.integers(0, 1000), size=st.integers(1, 2000), data=st.data())
def test_largest_floor_is_a_lower_bound(seed: int, size: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, size))
    row = np.random.default_rng(seed).standard_normal(size).astype(np.float32)
    assert int((row >= largest_floor(row, count)).sum()) >= count
