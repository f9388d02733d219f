"""A draft model's second choices: where it is unsure, under the target's own noise, within its limit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.drafters.stepwise import SECOND, UNCERTAIN
from foredraft.protocols import RequestView
from foredraft.sampling.coupled import CoupledSampler
from foredraft.testing import FakeModel, markov_logits
from foredraft.types import Draft, DraftLimit, Outcome, SamplingParams, VerifyRule

VOCAB = 24
LOGITS = markov_logits(VOCAB, seed=3, scale=1.5)
FULL = DraftLimit(64)
WARM = SamplingParams(temperature=0.8)


def drafter(*, trees: bool = True, max_tokens: int = 8) -> DraftModelDrafter:
    model = FakeModel(VOCAB, logits=LOGITS, name="small")
    sampler = CoupledSampler(VOCAB, frozenset())
    return DraftModelDrafter(model, sampler, max_tokens, end_tokens=frozenset(), trees=trees)


def view(number: int = 1, params: SamplingParams = WARM) -> RequestView:
    tokens = [3, number % VOCAB, 7 * number % VOCAB]
    return RequestView(number, tokens, params, seed=number, prompt_length=len(tokens))


def one(made: DraftModelDrafter, request: RequestView, limit: DraftLimit = FULL) -> Draft:
    made.start(request)
    [found] = made.draft([(request, limit)])
    assert found is not None
    assert 0 < len(found) <= limit.max_tokens
    assert len(found.confidence) == len(found)
    return found


def drafted(number: int, params: SamplingParams = WARM) -> tuple[Draft, Draft]:
    """A request's chain, and its draft where trees are verified."""
    return one(drafter(trees=False), view(number, params)), one(drafter(), view(number, params))


@pytest.mark.parametrize("params", [SamplingParams(), WARM], ids=["greedy", "warm"])
def test_a_second_choice_is_what_would_be_taken_if_the_first_did_not_exist(params: SamplingParams) -> None:
    seconds = 0
    for number in range(1, 60):
        chain, tree = drafted(number, params)
        assert chain.parents is None
        if tree.parents is None:
            assert tree == chain, "it was sure of every token"
            continue
        paths: list[tuple[int, ...]] = []
        for token, parent in zip(tree.tokens, tree.parents, strict=True):
            paths.append((*(paths[parent] if parent >= 0 else ()), token))
        for path in paths:
            depth = len(path) - 1
            assert path[:-1] == chain.tokens[:depth], "nothing is built on a second choice"
            if path[-1] == chain.tokens[depth]:
                continue
            seconds += 1
            banned = replace(params, logit_bias={chain.tokens[depth]: -np.inf})
            request = view(number, banned)
            row = LOGITS([*request.tokens, *path[:-1]])
            other, _, _ = CoupledSampler(VOCAB, frozenset()).propose(row, request, path[:-1])
            assert path[-1] == other
    assert seconds > 10


def test_seconds_are_added_only_where_they_may_be_right() -> None:
    for number in range(1, 20):
        chain, tree = drafted(number)
        reached: list[float] = []
        parents = tree.parents or tuple(range(-1, len(tree) - 1))
        children: dict[int, list[int]] = {}
        for i, (parent, chance) in enumerate(zip(parents, tree.confidence, strict=True)):
            reached.append(chance * (1.0 if parent < 0 else reached[parent]))
            children.setdefault(parent, []).append(i)
        for siblings in children.values():
            assert len(siblings) <= 2
            assert sum(tree.confidence[i] for i in siblings) <= 1 + 1e-9
            if len(siblings) == 2:
                second = [i for i in siblings if tree.tokens[i] not in chain.tokens]
                assert all(reached[i] >= SECOND - 1e-9 for i in second)
                assert any(tree.confidence[i] < UNCERTAIN for i in siblings)


@pytest.mark.parametrize("most", [1, 2, 3, 5])
def test_a_tree_keeps_to_the_limit_with_its_likeliest_tokens(most: int) -> None:
    for number in range(1, 12):
        tree = one(drafter(), view(number), DraftLimit(most))
        whole = one(drafter(), view(number))
        assert len(tree) <= most
        assert tree.tokens[0] in whole.tokens


@pytest.mark.parametrize("verify", ["rejection", "block"])
def test_sampled_drafts_have_no_seconds(verify: VerifyRule) -> None:
    params = replace(WARM, verify=verify)
    for number in range(1, 8):
        found = one(drafter(), view(number, params))
        assert found.parents is None
        assert found.probs is not None


def test_an_accepted_second_choice_leaves_the_cache_right() -> None:
    """The next draft is that of a drafter which has just read the same text."""
    for number in range(1, 20):
        made, request = drafter(), view(number)
        tree = one(made, request)
        if tree.parents is None:
            continue
        chain = one(drafter(trees=False), view(number))
        roots = [tree.tokens[i] for i, parent in enumerate(tree.parents) if parent < 0]
        other = [token for token in roots if token != chain.tokens[0]]
        if not other:
            continue
        committed = (other[0], 4)
        kept = len(request.tokens)
        request.tokens.extend(committed)
        made.observe(request, Outcome(kept, committed, tree, 1))
        fresh = replace_tokens(number, request.tokens)
        assert made.draft([(request, FULL)]) == drafter().draft([(fresh, FULL)])
        return
    pytest.fail("no second choice for a first token")


def replace_tokens(number: int, tokens: list[int]) -> RequestView:
    fresh = view(number)
    fresh.tokens[:] = tokens
    return fresh
