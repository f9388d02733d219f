"""Rejection sampling and block verification leave the target's distribution exactly as it is.

Each rule is integrated exactly: every draft is put to it, weighted by its probability, and the rule's
acceptance thresholds are found by bisection from outside, so that nothing here knows its formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

import numpy as np
import pytest

from foredraft.types import Probs, Verdict
from foredraft.verification.block import verify_block
from foredraft.verification.rejection import Pick, Target, Uniform, verify_rejection

Rule: TypeAlias = Callable[[Sequence[int], Sequence[Probs] | None, Target, Uniform, Pick], Verdict]
Text: TypeAlias = tuple[int, ...]
Language: TypeAlias = Callable[[Text], Probs]


def random_language(vocab: int, seed: int, *, zeros: bool) -> Language:
    """A distribution for every prefix; with `zeros`, some tokens are impossible."""

    def language(prefix: Text) -> Probs:
        rng = np.random.default_rng([seed, len(prefix), *prefix])
        weights = rng.dirichlet(np.full(vocab, 0.7))
        if zeros:
            weights[rng.integers(vocab)] *= rng.integers(2)
        return np.asarray(weights / weights.sum())

    return language


@dataclass(frozen=True)
class Case:
    """One draft put to a rule."""

    rule: Rule
    tokens: Text
    probs: tuple[Probs, ...] | None
    target: Language

    def run(self, numbers: Sequence[float]) -> tuple[int, Probs]:
        """How many tokens are accepted with these uniform numbers, and what the next is drawn from."""
        drawn: list[Probs] = []

        def pick(index: int, weights: Probs) -> int:
            drawn.append(weights / weights.sum())
            return index

        verdict = self.rule(
            self.tokens, self.probs, lambda row: self.target(self.tokens[:row]), numbers.__getitem__, pick
        )
        assert verdict.tokens == (*self.tokens[: verdict.accepted], verdict.accepted)
        assert verdict.path == tuple(range(verdict.accepted))
        return verdict.accepted, drawn[0]

    def chance(self, test: int, *, before: float, after: float) -> float:
        """The probability that the test accepts: the number below which more than `test` are accepted."""
        low, high = 0.0, 1.0
        for _ in range(54):
            middle = (low + high) / 2
            numbers = [before] * test + [middle] + [after] * (len(self.tokens) - test - 1)
            if self.run(numbers)[0] > test:
                low = middle
            else:
                high = middle
        return high if high == 1.0 else low


def outcomes(case: Case, *, longest: bool) -> Iterator[tuple[float, int, Probs]]:
    """(probability, accepted tokens, distribution of the next) of every way the rule can decide.

    `longest`: the last test that accepts decides (block verification); otherwise the first that rejects.
    """
    size = len(case.tokens)
    accept, reject = 0.0, 1.0
    before = reject if longest else accept
    chances = [case.chance(test, before=before, after=reject) for test in range(size)]
    for accepted in range(size + 1):
        if longest:
            numbers = [reject] * size
            weight = float(np.prod([1 - chance for chance in chances[accepted:]]))
            if accepted:
                numbers[accepted - 1] = accept
                weight *= chances[accepted - 1]
        else:
            numbers = [accept] * accepted + [reject] * (size - accepted)
            weight = float(np.prod(chances[:accepted]))
            weight *= 1 - chances[accepted] if accepted < size else 1.0
        if weight > 0.0:
            found, following = case.run(numbers)
            assert found == accepted
            yield weight, accepted, following


def drafts(draft: Language, stop: Callable[[Text], bool]) -> Iterator[tuple[float, Text]]:
    """Every draft and its probability. `stop(prefix)` ends it there: a stopping time."""

    def grow(prefix: Text, weight: float) -> Iterator[tuple[float, Text]]:
        if stop(prefix):
            yield weight, prefix
            return
        for token, probability in enumerate(draft(prefix)):
            if probability > 0.0:
                yield from grow((*prefix, token), weight * float(probability))

    return grow((), 1.0)


def joint(language: Language, prefix: Text, length: int) -> Iterator[tuple[float, Text]]:
    """Every continuation of `prefix` to `length` tokens and its probability."""
    if len(prefix) >= length:
        yield 1.0, prefix[:length]
        return
    for token, probability in enumerate(language(prefix)):
        for weight, text in joint(language, (*prefix, token), length):
            yield float(probability) * weight, text


def committed_distribution(
    rule: Rule,
    target: Language,
    proposals: Iterator[tuple[float, Text]],
    draft: Language | None,
    length: int,
    *,
    longest: bool,
) -> tuple[dict[Text, float], float]:
    """The distribution of the first `length` tokens when the rule's are completed by the target's own, and
    the expected number of accepted tokens. `draft` None: the proposals are not sampled.
    """
    vocab = len(target(()))
    found: dict[Text, float] = dict.fromkeys(product(range(vocab), repeat=length), 0.0)
    expected = 0.0
    for weight, tokens in proposals:
        probs = None if draft is None else tuple(draft(tokens[:i]) for i in range(len(tokens)))
        for chance, accepted, following in outcomes(Case(rule, tokens, probs, target), longest=longest):
            expected += weight * chance * accepted
            for token, probability in enumerate(following):
                prefix = (*tokens[:accepted], token)
                for rest, text in joint(target, prefix, length):
                    found[text] += weight * chance * float(probability) * rest
    return found, expected


RULES: list[tuple[Rule, bool]] = [(verify_rejection, False), (verify_block, True)]
RULE_NAMES = ["rejection", "block"]


def largest_error(found: dict[Text, float], target: Language, length: int) -> float:
    return max(abs(found[text] - weight) for weight, text in joint(target, (), length))


@pytest.mark.parametrize(("rule", "longest"), RULES, ids=RULE_NAMES)
@pytest.mark.parametrize(("vocab", "size"), [(2, 1), (2, 3), (3, 2), (4, 1), (3, 3), (4, 2)])
@pytest.mark.parametrize("zeros", [False, True], ids=["dense", "zeros"])
def test_sampled_drafts_are_exact(rule: Rule, longest: bool, vocab: int, size: int, zeros: bool) -> None:
    target = random_language(vocab, 10 * vocab + size, zeros=zeros)
    draft = random_language(vocab, 1000 + 10 * vocab + size, zeros=zeros)
    proposals = drafts(draft, lambda prefix: len(prefix) == size)
    found, _ = committed_distribution(rule, target, proposals, draft, size + 1, longest=longest)
    assert largest_error(found, target, size + 1) < 1e-12


@pytest.mark.parametrize(("rule", "longest"), RULES, ids=RULE_NAMES)
@pytest.mark.parametrize("seed", range(3))
def test_fixed_drafts_are_exact(rule: Rule, longest: bool, seed: int) -> None:
    target = random_language(3, seed, zeros=seed == 2)
    proposals = iter([(1.0, (seed % 3, 1, 2))])
    found, _ = committed_distribution(rule, target, proposals, None, 4, longest=longest)
    assert largest_error(found, target, 4) < 1e-12


@pytest.mark.parametrize(("rule", "longest"), RULES, ids=RULE_NAMES)
def test_a_draft_may_stop_by_what_it_has_drafted_so_far(rule: Rule, longest: bool) -> None:
    target, draft = random_language(3, 5, zeros=False), random_language(3, 6, zeros=False)

    def unsure(prefix: Text) -> bool:
        return len(prefix) == 3 or (len(prefix) > 0 and draft(prefix).max() < 0.6)

    lengths = {len(text) for _, text in drafts(draft, unsure)}
    assert len(lengths) > 1
    found, _ = committed_distribution(rule, target, drafts(draft, unsure), draft, 4, longest=longest)
    assert largest_error(found, target, 4) < 1e-12


@pytest.mark.parametrize(("rule", "longest"), RULES, ids=RULE_NAMES)
def test_an_equal_draft_is_accepted_whole(rule: Rule, longest: bool) -> None:
    target = random_language(3, 7, zeros=True)
    proposals = drafts(target, lambda prefix: len(prefix) == 3)
    found, expected = committed_distribution(rule, target, proposals, target, 4, longest=longest)
    assert expected == pytest.approx(3.0, abs=1e-12)
    assert largest_error(found, target, 4) < 1e-12


@pytest.mark.parametrize("seed", range(8))
def test_block_accepts_at_least_as_many_as_rejection(seed: int) -> None:
    target, draft = random_language(3, seed, zeros=False), random_language(3, 50 + seed, zeros=False)
    tokenwise, block = (
        committed_distribution(
            rule, target, drafts(draft, lambda prefix: len(prefix) == 2), draft, 3, longest=longest
        )[1]
        for rule, longest in RULES
    )
    assert block >= tokenwise - 1e-12


def test_the_papers_example() -> None:
    # Sun et al., section 1: two context-free models over {a, b}, drafts of two tokens.
    target: Language = lambda _: np.array([1 / 3, 2 / 3])  # noqa: E731
    draft: Language = lambda _: np.array([2 / 3, 1 / 3])  # noqa: E731
    tokenwise, block = (
        committed_distribution(
            rule, target, drafts(draft, lambda prefix: len(prefix) == 2), draft, 3, longest=longest
        )[1]
        for rule, longest in RULES
    )
    assert tokenwise == pytest.approx(10 / 9, abs=1e-12)
    assert block == pytest.approx(11 / 9, abs=1e-12)


def test_rejection_asks_for_no_row_past_the_first_rejection() -> None:
    rows: list[int] = []

    def target(row: int) -> Probs:
        rows.append(row)
        return np.array([0.0, 1.0]) if row == 1 else np.array([1.0, 0.0])

    verdict = verify_rejection(
        (0, 0, 0), None, target, lambda _: 0.5, lambda _, weights: int(weights.argmax())
    )
    assert verdict.tokens == (0, 1)
    assert rows == [0, 1]


@pytest.mark.parametrize("rule", [verify_rejection, verify_block], ids=RULE_NAMES)
def test_an_empty_draft_is_plain_sampling(rule: Rule) -> None:
    own = np.array([0.25, 0.75])
    seen: list[Probs] = []

    def pick(index: int, weights: Probs) -> int:
        seen.append(weights)
        return index + 1

    assert rule((), None, lambda _: own, lambda _: 0.5, pick) == Verdict((1,), ())
    assert seen[0].tolist() == [0.25, 0.75]


@pytest.mark.parametrize("rule", [verify_rejection, verify_block], ids=RULE_NAMES)
def test_distributions_are_not_written_to(rule: Rule) -> None:
    own, drawn = np.array([0.25, 0.75]), np.array([0.6, 0.4])
    own.flags.writeable = drawn.flags.writeable = False
    for numbers in ([0.01, 0.01], [0.99, 0.99]):
        for probs in (None, (drawn, drawn)):
            rule((0, 1), probs, lambda _: own, numbers.__getitem__, lambda _, weights: int(weights.argmax()))
