"""The draft model's choice: coupled to the target's, from the same processors, cheap to ask."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from foredraft.protocols import RequestView
from foredraft.sampling.coupled import REMEMBERED, CoupledSampler
from foredraft.sampling.sampler import RequestSampler
from foredraft.types import Logits, SamplingParams, VerifyRule

VOCAB = 20
END = frozenset({VOCAB - 1})


def request(
    params: SamplingParams, seed: int = 0, tokens: tuple[int, ...] = (1, 2, 3), id_: int = 1
) -> RequestView:
    return RequestView(id_, list(tokens), params, seed=seed, prompt_length=2)


def target(view: RequestView) -> RequestSampler:
    made = RequestSampler(
        view.params,
        seed=view.seed,
        vocab_size=VOCAB,
        end_tokens=END,
        prompt=view.tokens[: view.prompt_length],
    )
    for token in view.tokens[view.prompt_length :]:
        made.advance(token)
    return made


def random_row(seed: int, scale: float = 1.5) -> Logits:
    return (scale * np.random.default_rng(seed).standard_normal(VOCAB)).astype(np.float32)


def tv(p: np.ndarray, q: np.ndarray) -> float:
    return float(np.abs(p - q).sum() / 2)


@pytest.mark.parametrize("pair", range(4))
def test_acceptance_reaches_the_bound_and_beats_argmax(pair: int) -> None:
    params = SamplingParams(temperature=1.0)
    p_row = random_row(pair, 1.0)
    q_row = p_row + random_row(100 + pair, 0.5)
    coupled = CoupledSampler(VOCAB, END)
    trials, agreed, argmax = 2500, 0, 0
    for seed in range(trials):
        view = request(params, seed, id_=seed)
        own = target(view).choose(p_row)
        agreed += coupled.propose(q_row, view, ())[0] == own
        argmax += int(q_row.argmax()) == own
    distance = tv(*(target(request(params)).distribution(row) for row in (p_row, q_row)))
    bound = (1 - distance) / (1 + distance)
    assert agreed / trials > bound - 5 * (bound * (1 - bound) / trials) ** 0.5
    assert agreed / trials > argmax / trials + 0.2


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.8),
        SamplingParams(temperature=0.8, top_k=5, top_p=0.9, min_p=0.05),
        SamplingParams(temperature=0.9, repetition_penalty=1.4, frequency_penalty=0.4, logit_bias={3: 1.0}),
        SamplingParams(repetition_penalty=1.4, presence_penalty=0.4),
        SamplingParams(temperature=0.8, min_tokens=4, stop_tokens=(3,)),
    ],
    ids=range(6),
)
def test_the_same_model_proposes_what_the_target_chooses(params: SamplingParams) -> None:
    coupled = CoupledSampler(VOCAB, END)
    view = request(params, seed=5)
    own = target(view)
    for step in range(60):
        prefix: list[int] = []
        for depth in range(3):
            row = random_row(100 * step + depth)
            token, probability, probs = coupled.propose(row, view, prefix)
            assert token == own.choose(row, prefix)
            assert probs is None
            assert 0 < probability <= 1
            prefix.append(token)
        view.tokens.append(prefix[0])
        own.advance(prefix[0])


def test_probability_is_the_processed_one() -> None:
    row = random_row(1)
    for params in (SamplingParams(temperature=0.7), SamplingParams(temperature=0.7, top_k=4)):
        view = request(params)
        token, probability, _ = CoupledSampler(VOCAB, END).propose(row, view, ())
        assert probability == pytest.approx(target(view).distribution(row)[token], abs=1e-12)


def test_greedy_probability_is_not_just_one() -> None:
    row = random_row(1)
    token, probability, _ = CoupledSampler(VOCAB, END).propose(row, request(SamplingParams()), ())
    weights = np.exp(row.astype(np.float64))
    assert token == int(row.argmax())
    assert probability == pytest.approx(weights[token] / weights.sum(), rel=1e-9)


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_sampled_rules_draw_from_q_independently_of_the_target(rule: VerifyRule) -> None:
    params = SamplingParams(temperature=1.0, top_k=6, verify=rule)
    row = random_row(2)
    coupled = CoupledSampler(VOCAB, END)
    counts, agreed, trials = np.zeros(VOCAB), 0, 4000
    q = target(request(params)).distribution(row)
    for seed in range(trials):
        view = request(params, seed, id_=seed)
        token, probability, probs = coupled.propose(row, view, ())
        assert probs is not None
        assert probability == probs[token]
        np.testing.assert_allclose(probs, q, atol=1e-15)
        counts[token] += 1
        agreed += token == target(view).choose(row)
    expected = trials * q[q > 0]
    assert float(((counts[q > 0] - expected) ** 2 / expected).sum()) < 36.0
    chance = float(q @ q)
    assert abs(agreed / trials - chance) < 5 * (chance * (1 - chance) / trials) ** 0.5


def test_sampled_draws_are_fresh_when_a_position_is_drafted_again() -> None:
    params = SamplingParams(temperature=1.0, verify="block")
    row = np.zeros(VOCAB, np.float32)
    coupled = CoupledSampler(VOCAB, END)
    same = 0
    for seed in range(2000):
        deep = coupled.propose(row, request(params, seed, (1, 2, 3), seed), (4,))[0]
        again = coupled.propose(row, request(params, seed, (1, 2, 3, 4), seed), ())[0]
        same += deep == again
    assert abs(same - 100) < 49  # five standard deviations of chance agreement


def test_sampled_rules_are_greedy_at_temperature_zero() -> None:
    row = random_row(3)
    token, _, probs = CoupledSampler(VOCAB, END).propose(row, request(SamplingParams(verify="block")), ())
    assert token == int(row.argmax())
    assert probs is None


class CountingList(list[int]):
    """A history that knows how much of it was read."""

    read = 0

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        type(self).read += len(found) if isinstance(found, list) else 1
        return found


@pytest.mark.parametrize("params", [SamplingParams(temperature=1.0), SamplingParams(repetition_penalty=1.1)])
def test_a_long_history_is_not_read_again(params: SamplingParams) -> None:
    view = RequestView(1, CountingList([1] * 5000), params, prompt_length=10)
    coupled = CoupledSampler(VOCAB, END)
    coupled.propose(random_row(0), view, ())
    CountingList.read = 0
    for step in range(20):
        coupled.propose(random_row(step), view, (1, 2))
        view.tokens.append(3)
    assert CountingList.read <= 100


def test_removed_text_and_reused_ids_are_counted_afresh() -> None:
    params = SamplingParams(frequency_penalty=2.0, repetition_penalty=1.5)
    coupled = CoupledSampler(VOCAB, END)
    view = request(params, tokens=(1, 2, 7, 7, 7))
    row = np.zeros(VOCAB, np.float32)
    row[7] = 1.0
    row[8] = 0.5
    assert coupled.propose(row, view, ())[0] == 8
    del view.tokens[2:]
    assert coupled.propose(row, view, ())[0] == 7
    assert coupled.propose(row, request(params, tokens=(1, 2, 7, 7)), ())[0] == 8


@pytest.mark.parametrize("penalty", [1.0, 1.5])
def test_a_prompt_that_was_cut_short(penalty: float) -> None:
    view = RequestView(1, [4], SamplingParams(repetition_penalty=penalty), prompt_length=6)
    row = np.zeros(VOCAB, np.float32)
    row[4], row[5] = 1.0, 0.9
    assert CoupledSampler(VOCAB, END).propose(row, view, ())[0] == (4 if penalty == 1.0 else 5)


def test_memory_is_bounded() -> None:
    coupled = CoupledSampler(VOCAB, END)
    params = SamplingParams(repetition_penalty=1.1)
    for number in range(3 * REMEMBERED):
        coupled.propose(random_row(0), request(params, id_=number), ())
    assert len(coupled._requests) == REMEMBERED
