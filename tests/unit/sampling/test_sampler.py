"""RequestSampler: keyed, exact in distribution, aware of history, and honest about log-probabilities."""

from __future__ import annotations

import math

import numpy as np
import pytest

from foredraft.errors import BackendError, RequestError
from foredraft.sampling.sampler import RequestSampler
from foredraft.types import Logits, Probs, SamplingParams

VOCAB = 6
END = frozenset({5})
ROW: Logits = np.array([0.2, 1.0, -0.5, 1.4, 0.0, 0.9], np.float32)


def sampler(params: SamplingParams, seed: int = 0, prompt: tuple[int, ...] = (0, 1)) -> RequestSampler:
    return RequestSampler(params, seed=seed, vocab_size=VOCAB, end_tokens=END, prompt=prompt)


def softmax(row: np.ndarray) -> Probs:
    weights = np.exp(row.astype(np.float64) - row.max())
    return np.asarray(weights / weights.sum())


SETTINGS = [
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.7),
    SamplingParams(temperature=1.5, top_k=3),
    SamplingParams(temperature=1.0, top_p=0.8),
    SamplingParams(temperature=1.0, min_p=0.3),
    SamplingParams(temperature=0.9, top_k=4, top_p=0.9, min_p=0.1),
    SamplingParams(temperature=1.0, repetition_penalty=1.5, presence_penalty=0.5, frequency_penalty=0.3),
    SamplingParams(temperature=1.0, logit_bias={2: 2.0, 3: -math.inf}),
    SamplingParams(temperature=1.0, min_tokens=10, stop_tokens=(1,)),
]


@pytest.mark.parametrize("params", SETTINGS, ids=range(len(SETTINGS)))
def test_choice_follows_the_distribution(params: SamplingParams) -> None:
    probs = sampler(params).distribution(ROW, (3,))
    counts = np.zeros(VOCAB)
    for seed in range(6000):
        counts[sampler(params, seed).choose(ROW, (3,))] += 1
    possible = probs > 0
    assert counts[~possible].sum() == 0
    expected = 6000 * probs[possible]
    # 5 degrees of freedom at most: exceeded by chance once in 10⁶.
    assert float(((counts[possible] - expected) ** 2 / expected).sum()) < 36.0
    assert probs.sum() == pytest.approx(1.0, abs=1e-12)


def test_greedy_takes_the_lowest_id_among_equals() -> None:
    row = np.array([1, 4, 4, 0, 4, 2], np.float32)
    assert sampler(SamplingParams()).choose(row) == 1
    assert sampler(SamplingParams(temperature=1e-6)).choose(row) == 1
    assert sampler(SamplingParams(logit_bias={0: 3.0})).choose(row) == 0
    assert sampler(SamplingParams()).distribution(row).tolist() == [0, 1, 0, 0, 0, 0]


def test_noise_depends_on_the_absolute_position_only() -> None:
    params = SamplingParams(temperature=1.0)
    rows = np.random.default_rng(0).standard_normal((40, VOCAB)).astype(np.float32)
    walked = sampler(params, 7)
    plain = []
    for row in rows:
        plain.append(walked.choose(row))
        walked.advance(plain[-1])
    ahead = sampler(params, 7)
    assert [ahead.choose(row, plain[:i]) for i, row in enumerate(rows)] == plain
    resumed = sampler(params, 7, (0, 1, *plain[:20]))
    assert [resumed.choose(row, plain[20:i]) for i, row in enumerate(rows) if i >= 20] == plain[20:]
    assert len(set(plain)) > 2
    assert walked.position == 42


def test_history_and_extra_are_the_same_to_the_penalties() -> None:
    params = SamplingParams(
        temperature=1.0, repetition_penalty=1.3, frequency_penalty=0.7, presence_penalty=0.2
    )
    walked, ahead = sampler(params), sampler(params)
    for token in (3, 3, 4):
        walked.advance(token)
    np.testing.assert_array_equal(walked.distribution(ROW), ahead.distribution(ROW, (3, 3, 4)))
    assert not np.array_equal(walked.distribution(ROW), ahead.distribution(ROW))


def test_end_and_stop_tokens_wait_for_min_tokens() -> None:
    params = SamplingParams(min_tokens=2, stop_tokens=(3,))
    row = np.array([0, 1, 0, 9, 0, 8], np.float32)
    one = sampler(params)
    assert one.choose(row) == 1
    assert one.choose(row, (1,)) == 1
    assert one.choose(row, (1, 1)) == 3
    one.advance(1)
    assert one.choose(row) == 1
    one.advance(1)
    assert one.choose(row) == 3
    assert one.choose(ROW) == int(ROW.argmax())


def test_ignored_end_tokens_are_not_banned() -> None:
    row = np.array([0, 1, 0, 9, 0, 10], np.float32)
    assert sampler(SamplingParams(min_tokens=2, stop_tokens=(3,), ignore_eos=True)).choose(row) == 5


def test_rows_are_never_written_to() -> None:
    row = ROW.copy()
    row.flags.writeable = False
    for params in SETTINGS:
        one = sampler(params)
        one.choose(row, (1,))
        one.distribution(row, (1,))
        one.logprob(row, 2)
    np.testing.assert_array_equal(row, ROW)


def test_logprob_is_of_the_unmodified_row() -> None:
    expected = np.log(softmax(ROW))
    params = SamplingParams(temperature=0.3, top_k=1, logit_bias={2: 50.0}, logprobs=3)
    found = sampler(params).logprob(ROW, 2)
    assert found.token == 2
    assert found.logprob == pytest.approx(expected[2], abs=1e-12)
    assert [token for token, _ in found.top] == [3, 1, 5]
    assert [value for _, value in found.top] == pytest.approx(expected[[3, 1, 5]].tolist(), abs=1e-12)
    assert sampler(SamplingParams(logprobs=0)).logprob(ROW, 2).top == ()


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=0.8, top_k=2)])
def test_bad_rows_raise(params: SamplingParams) -> None:
    with pytest.raises(BackendError, match="not numbers"):
        sampler(params).choose(np.array([0, math.nan, 1, 0, 0, 0], np.float32))
    with pytest.raises(RequestError, match="No token"):
        sampler(params).choose(np.full(VOCAB, -math.inf, np.float32))


def test_acceptance_noise_is_fresh_in_every_round() -> None:
    one = sampler(SamplingParams(temperature=1.0), 3)
    first = [one.uniform_at(i) for i in range(5)]
    assert first == [one.uniform_at(i) for i in range(5)]
    one.advance(0)
    second = [one.uniform_at(i) for i in range(5)]
    # Position p + 1 is index 1 of the first round and index 0 of the second.
    assert len({*first, *second}) == 10
    assert all(0 < value < 1 for value in first + second)


def test_pick_follows_weights_that_need_not_be_normalised() -> None:
    weights = np.array([0.0, 0.2, 0.0, 0.6, 0.0, 0.0])
    counts = np.zeros(VOCAB)
    for seed in range(4000):
        counts[sampler(SamplingParams(temperature=1.0), seed).pick(weights, 1)] += 1
    assert counts[[0, 2, 4, 5]].sum() == 0
    assert abs(counts[3] - 3000) < 140  # five standard deviations


def test_pick_is_independent_of_choose() -> None:
    params = SamplingParams(temperature=1.0)
    row = np.zeros(VOCAB, np.float32)
    probs = np.full(VOCAB, 1 / VOCAB)
    agree = sum(
        sampler(params, seed).choose(row) == sampler(params, seed).pick(probs, 0) for seed in range(3000)
    )
    assert abs(agree - 500) < 103  # five standard deviations
