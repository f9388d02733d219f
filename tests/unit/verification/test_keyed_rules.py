"""The rules with the real keyed noise, over several rounds: the text still follows the target.

Several rounds matter: they draft the same positions again, and noise that is not fresh in every round biases
block verification (with one stream per position this test's statistic is 15 standard deviations too large).
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from foredraft.protocols import RequestView
from foredraft.sampling.coupled import CoupledSampler
from foredraft.sampling.sampler import RequestSampler
from foredraft.types import Logits, SamplingParams, Verdict, VerifyRule
from foredraft.verification.block import verify_block
from foredraft.verification.chain import verify_chain
from foredraft.verification.rejection import verify_rejection
from matrix import matrix

VOCAB = 2
LENGTH = 4
NOBODY: frozenset[int] = frozenset()


def language(seed: int) -> dict[tuple[int, ...], Logits]:
    rng = np.random.default_rng(seed)
    prefixes = (text for length in range(LENGTH + 5) for text in product(range(VOCAB), repeat=length))
    return {text: (0.7 * rng.standard_normal(VOCAB)).astype(np.float32) for text in prefixes}


TARGET, DRAFTER = language(11), language(12)


def generate(params: SamplingParams, seed: int, depth: int) -> tuple[tuple[int, ...], int]:
    """LENGTH tokens, and how many draft tokens were accepted on the way."""
    view = RequestView(seed, [], params, seed=seed)
    own = RequestSampler(params, seed=seed, vocab_size=VOCAB, end_tokens=NOBODY, prompt=())
    coupled = CoupledSampler(VOCAB, NOBODY)
    accepted = 0
    while len(view.tokens) < LENGTH:
        draft: list[int] = []
        probs = []
        for _ in range(depth):
            token, _, drawn = coupled.propose(DRAFTER[(*view.tokens, *draft)], view, draft)
            draft.append(token)
            probs.append(drawn)
        verdict = verify(own, view, draft, None if probs[0] is None else [q for q in probs if q is not None])
        accepted += verdict.accepted
        view.tokens.extend(verdict.tokens)
        for token in verdict.tokens:
            own.advance(token)
    return tuple(view.tokens[:LENGTH]), accepted


def verify(
    own: RequestSampler, view: RequestView, draft: list[int], probs: list[np.ndarray] | None
) -> Verdict:
    def row(index: int) -> Logits:
        return TARGET[(*view.tokens, *draft[:index])]

    if view.params.verify == "match":
        return verify_chain(draft, lambda index: own.choose(row(index), draft[:index]))
    rule = verify_rejection if view.params.verify == "rejection" else verify_block
    return rule(
        draft,
        probs,
        lambda index: own.distribution(row(index), draft[:index]),
        own.uniform_at,
        lambda index, weights: own.pick(weights, index),
    )


def joint(params: SamplingParams) -> dict[tuple[int, ...], float]:
    own = RequestSampler(params, seed=0, vocab_size=VOCAB, end_tokens=NOBODY, prompt=())
    weights: dict[tuple[int, ...], float] = {}
    for text in product(range(VOCAB), repeat=LENGTH):
        steps = (own.distribution(TARGET[text[:i]], text[:i])[text[i]] for i in range(LENGTH))
        weights[text] = float(np.prod(list(steps)))
    return weights


@matrix(
    strength=1,
    rule=["match", "rejection", "block"],
    extra=[{}, {"frequency_penalty": 0.8, "repetition_penalty": 1.3}],
    ids={"extra": ["plain", "penalties"]},
)
def test_text_follows_the_target(rule: VerifyRule, extra: dict[str, float], is_nightly: bool) -> None:
    params = SamplingParams(temperature=0.9, verify=rule, **extra)  # type: ignore[arg-type]
    trials = 4000 if is_nightly else 2000
    expected = {text: trials * weight for text, weight in joint(params).items()}
    assert sum(expected.values()) == pytest.approx(trials)
    counts = dict.fromkeys(expected, 0)
    accepted = 0
    for seed in range(trials):
        text, right = generate(params, seed, depth=3)
        counts[text] += 1
        accepted += right
    # Rare texts are pooled, as the chi-square approximation asks.
    rare = [text for text, number in expected.items() if number < 8]
    pooled = [(sum(counts[text] for text in rare), sum(expected[text] for text in rare))]
    pooled += [(counts[text], number) for text, number in expected.items() if number >= 8]
    statistic = sum((seen - number) ** 2 / number for seen, number in pooled if number > 0)
    freedom = len(pooled) - 1
    limit = freedom * (1 - 2 / (9 * freedom) + 4.753 * (2 / (9 * freedom)) ** 0.5) ** 3
    assert statistic < limit
    assert accepted > trials // 2


def test_match_gives_the_plain_text() -> None:
    params = SamplingParams(temperature=0.9)
    for seed in range(200):
        assert generate(params, seed, depth=3)[0] == generate(params, seed, depth=1)[0]
