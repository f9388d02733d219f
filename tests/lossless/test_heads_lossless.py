"""The first promise with a trained head: the same tokens, whether it is right or wrong, wherever its text
came from. The doubles raise where a head gets features of another token or text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from foredraft import Constraint, Engine, SamplingParams
from foredraft.drafters.heads import HeadsDrafter
from foredraft.planner import StaticPlanner
from foredraft.protocols import Model, Planner
from foredraft.sampling.coupled import CoupledSampler
from foredraft.sampling.thought import answer_guide
from foredraft.testing import FakeHead, FakeModel, LogitsFunction, assert_lossless, markov_logits
from foredraft.types import Logits, VerifyRule
from matrix import matrix
from planner_doubles import auto_planner

VOCABULARY = 40
LANGUAGE = markov_logits(VOCABULARY, order=1, seed=1, scale=2.5)
OTHER = markov_logits(VOCABULARY, order=2, seed=2, scale=2.5)
PROMPTS = [[1, 2, 3, 1, 2], [5, 6], [3] * 30, [7, 8, 9, 7, 8, 9]]
PLANNERS: dict[str, Callable[[], Planner]] = {"static": StaticPlanner, "auto": auto_planner}
SETTINGS = {
    "greedy": SamplingParams(max_tokens=60, ignore_eos=True),
    "warm": SamplingParams(temperature=0.8, seed=4, max_tokens=60, ignore_eos=True),
    "truncated": SamplingParams(
        temperature=1.0, seed=4, top_k=8, top_p=0.9, repetition_penalty=1.2, max_tokens=60, ignore_eos=True
    ),
    "stopped": SamplingParams(temperature=0.6, seed=2, stop=("ab", "cde"), max_tokens=60),
}


def reduced(prefix: Sequence[int]) -> Logits:
    """The language, of which the head knows every other token."""
    logits = LANGUAGE(prefix).copy()
    logits[1::2] = -np.inf
    return logits


HEADS: dict[str, LogitsFunction] = {"right": LANGUAGE, "random": OTHER, "reduced": reduced}


def target(*, trees: bool = True, **changes: Any) -> FakeModel:
    options: dict[str, Any] = {"logits": LANGUAGE, "max_batch": 48, "context_length": 400, **changes}
    return FakeModel(VOCABULARY, features=("layer:1", "layer:4", "next"), trees=trees, **options)


def drafter(
    model: Model, logits: LogitsFunction = LANGUAGE, *, window: int = 0, block: int = 0, kept: int = 512
) -> HeadsDrafter:
    assert isinstance(model, FakeModel)
    tokenizer = model.tokenizer
    sampler = CoupledSampler(
        model.info.vocab_size, tokenizer.end_tokens, lambda it: answer_guide(it, tokenizer)
    )
    trees = model.capabilities.trees
    head = FakeHead(model, window=window, trees=trees, block=block, logits=logits)
    return HeadsDrafter(head, sampler, end_tokens=tokenizer.end_tokens, window=kept, trees=trees)


@matrix(
    head=HEADS,
    planner=PLANNERS,
    settings=SETTINGS,
    concurrent=[False, True],
    trees=[False, True],
    window=[0, 1],
    block=[0, 6],
    ids={
        "concurrent": ["alone", "concurrent"],
        "trees": ["chains", "trees"],
        "window": ["all", "last"],
        "block": ["steps", "blocks"],
    },
)
def test_heads_leave_the_text_as_it_is(
    head: str, planner: str, settings: str, concurrent: bool, trees: bool, window: int, block: int
) -> None:
    assert_lossless(
        lambda: target(trees=trees),
        lambda model: [drafter(model, HEADS[head], window=window, block=block)],
        PROMPTS,
        SETTINGS[settings],
        concurrent=concurrent,
        planner=PLANNERS[planner],
    )


@matrix(settings=["greedy", "warm"], concurrent=[False, True], window=[0, 1], block=[0, 1, 6])
def test_of_a_right_head_all_is_accepted(settings: str, concurrent: bool, window: int, block: int) -> None:
    """A block's rows are those after the likeliest tokens, so a sampled one makes the rest a guess."""
    model = target(trees=False)
    with Engine(model, drafters=[drafter(model, window=window, block=block)]) as engine:
        if concurrent:
            answers = engine.run([engine.add(prompt, SETTINGS[settings]) for prompt in PROMPTS])
        else:
            answers = [engine.generate(prompt, SETTINGS[settings]) for prompt in PROMPTS]
    for answer in answers:
        [stats] = answer.speculation.drafters.values()
        if settings == "greedy" or block < 2:
            assert stats.accepted == stats.drafted > (25 if block == 1 else 40)
        assert stats.accepted > 15
        assert answer.speculation.exact


@pytest.mark.parametrize("block", [0, 6])
@pytest.mark.parametrize("settings", ["greedy", "warm"])
def test_preempted_requests_go_on_with_their_head(settings: str, block: int) -> None:
    params, prompts = SETTINGS[settings], [[1, 2, 3], [4, 5, 6], [7, 8]]
    with Engine(target(trees=False)) as plain:
        expected = [plain.generate(prompt, params).tokens for prompt in prompts]
    for kept in (6, 512):
        model = target(trees=False, kv_cells=100)
        with Engine(model, drafters=[drafter(model, block=block, kept=kept)]) as engine:
            answers = engine.run([engine.add(prompt, params) for prompt in prompts])
            assert engine.preemptions > 0
        assert [answer.tokens for answer in answers] == expected
        least = 1.3 if block and settings == "warm" else 2.0
        assert all((answer.speculation.acceptance_length or 0.0) > least for answer in answers)
        assert not [note for answer in answers for note in answer.speculation.notes]


@pytest.mark.parametrize("block", [0, 6])
def test_a_head_begins_after_a_cached_prefix(block: int) -> None:
    params = SETTINGS["greedy"]
    model = target(trees=False)
    made = drafter(model, block=block)
    with Engine(model, drafters=[made]) as engine:
        first = engine.generate(PROMPTS[2], params)
        turn = [*PROMPTS[2], *first.tokens, 4]
        second = engine.generate(turn, params)
        assert second.usage.cached_tokens > len(PROMPTS[2])
    with Engine(target(trees=False)) as plain:
        assert second.tokens == plain.generate(turn, params).tokens
    [stats] = second.speculation.drafters.values()
    assert stats.accepted == stats.drafted > 40
    assert isinstance(made._head, FakeHead)
    starts = [rows.start for batch in made._head.batches for rows in batch if rows.features is not None]
    assert second.usage.cached_tokens + 1 in starts


@matrix(planner=PLANNERS, head=["right", "random"], temperature=[0.0, 0.9], trees=[False, True])
def test_constraints_are_respected_by_drafts(
    planner: str, head: str, temperature: float, trees: bool
) -> None:
    schema = {"type": "object", "properties": {"name": {"enum": ["anna", "anton"]}}, "required": ["name"]}
    constraint = Constraint("json_schema", json.dumps(schema))
    params = SamplingParams(temperature=temperature, seed=3, max_tokens=80, constraint=constraint)
    language, other = (markov_logits(258, order=1, seed=seed) for seed in (1, 2))
    made: list[HeadsDrafter] = []

    def create(model: Model) -> list[HeadsDrafter]:
        made.append(drafter(model, language if head == "right" else other))
        return made[-1:]

    assert_lossless(
        lambda: FakeModel(258, logits=language, features=("next",), trees=trees),
        create,
        [[1, 2, 3], [50, 60]],
        params,
        planner=PLANNERS[planner],
    )
    assert isinstance(made[0]._head, FakeHead)
    assert made[0]._head.batches
    if planner == "static" and head == "right":
        with Engine(
            model := FakeModel(258, logits=language, features=("next",)), drafters=create(model)
        ) as it:
            answer = it.generate([1, 2, 3], params)
        [stats] = answer.speculation.drafters.values()
        assert stats.accepted > 5


@pytest.mark.parametrize("block", [0, 2], ids=["steps", "blocks"])
@pytest.mark.parametrize("verify", ["rejection", "block"])
def test_sampled_rules_with_a_reduced_vocabulary_follow_the_target(
    verify: VerifyRule, block: int, is_nightly: bool
) -> None:
    """Two tokens of a target over six, drafted by a head that knows three of them, against the exact
    distribution. The limit of the statistic is passed once in a million runs.
    """
    small = markov_logits(6, order=1, seed=5, scale=0.8)

    def known(prefix: Sequence[int]) -> Logits:
        logits = small(prefix) + markov_logits(6, order=1, seed=6, scale=0.5)(prefix)
        logits[[1, 4, 5]] = -np.inf
        return logits

    trials = 6000 if is_nightly else 3000
    model = FakeModel(6, logits=small, features=("next",), trees=False)
    counts, accepted = np.zeros((6, 6)), 0
    with Engine(model, drafters=[drafter(model, known, block=block)]) as engine:
        for seed in range(trials):
            params = SamplingParams(temperature=1.0, seed=seed, max_tokens=4, verify=verify, ignore_eos=True)
            answer = engine.generate([0, 3], params)
            counts[answer.tokens[1:3]] += 1  # the first comes of the prompt, without a draft
            accepted += answer.usage.accepted_prediction_tokens
    rows = np.exp(np.array([small([token]) for token in range(6)], np.float64))
    rows /= rows.sum(axis=1, keepdims=True)
    expected = trials * (rows[3] @ rows)[:, None] * rows
    assert float(((counts - expected) ** 2 / expected).sum()) < 90.5  # 35 degrees of freedom
    assert accepted > trials // (3 if block else 2)
