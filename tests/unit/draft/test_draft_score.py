"""What a score says a run would accept, against what runs do accept, over doubles."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from foredraft.draft.passages import DEPTHS, LENGTH, Passage, of_answer, of_text
from foredraft.draft.places import distances
from foredraft.draft.reading import Guesses, HeadGuesses, ModelGuesses
from foredraft.draft.rounds import Counts, Rule
from foredraft.draft.score import Scorer
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.engine.engine import Engine
from foredraft.sampling.coupled import CoupledSampler
from foredraft.testing import FakeHead, FakeModel, LogitsFunction, markov_logits
from foredraft.types import Completion, FinishReason, Logits, SamplingParams

VOCAB = 24
PROMPT = [1, 2, 3]
BASE, NOISE = markov_logits(VOCAB, order=2, seed=1), markov_logits(VOCAB, order=2, seed=2)


def target_logits(prefix: Sequence[int]) -> Logits:
    """The last token, which ends a text, comes now and then."""
    row = BASE(prefix).copy()
    row[-1] -= 3.0
    return row


def draft_logits(prefix: Sequence[int]) -> Logits:
    """Near the target's."""
    row: Logits = target_logits(prefix) + 0.6 * NOISE(prefix)
    return row


def models() -> tuple[FakeModel, FakeModel]:
    return FakeModel(VOCAB, logits=target_logits), FakeModel(VOCAB, logits=draft_logits, name="draft")


def live(rule: Rule, temperature: float, answers: int, tokens: int, most: int) -> list[Completion]:
    """Answers with drafts of `most` tokens in every round."""
    target, draft = models()
    drafter = DraftModelDrafter(draft, CoupledSampler(VOCAB, target.tokenizer.end_tokens), most)
    with Engine(target, drafters=[drafter], clock=target.clock) as engine:
        return [
            engine.generate(
                PROMPT,
                SamplingParams(max_tokens=tokens, temperature=temperature, seed=seed, verify=rule),
            )
            for seed in range(answers)
        ]


def passages_of(answers: Sequence[Completion], temperature: float) -> list[Passage]:
    return [
        passage
        for seed, answer in enumerate(answers)
        for passage in of_answer(
            PROMPT,
            answer.tokens,
            temperature=temperature,
            seed=seed,
            cut=answer.finish_reason is FinishReason.LENGTH,
        )
    ]


def scored(
    passages: Sequence[Passage], guesses: Guesses | None = None, target: FakeModel | None = None
) -> Scorer:
    usual, draft = models()
    target = target or usual
    scorer = Scorer(target, guesses or ModelGuesses(draft), target.capabilities.features)
    for passage in passages:
        scorer.add(passage)
    return scorer


def accepted_by(answers: Sequence[Completion], most: int) -> tuple[int, list[int]]:
    """(rounds, accepted draft tokens at each depth)."""
    found = [0] * most
    for answer in answers:
        for depth, count in enumerate(answer.speculation.accepted_by_depth):
            found[depth] += count
    return sum(answer.speculation.rounds for answer in answers), found


@pytest.mark.parametrize("most", [1, 4, 8])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_the_rounds_of_a_run_are_replayed_to_the_token(temperature: float, most: int) -> None:
    answers = live("match", temperature, answers=12, tokens=100, most=most)
    rounds, accepted = accepted_by(answers, most)
    counts = scored(passages_of(answers, temperature)).tallies[temperature].counts["match"][most - 1]
    assert counts.rounds == rounds
    assert counts.accepted == accepted
    assert 0 < sum(accepted) < rounds * most


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_sampled_rules_accept_what_was_expected(rule: Rule) -> None:
    answers = live(rule, 0.9, answers=60, tokens=120, most=4)
    rounds, accepted = accepted_by(answers, 4)
    counts = scored(passages_of(answers, 0.9)).tallies[0.9].counts[rule][3]
    assert counts.rounds == pytest.approx(rounds, rel=0.03)
    for depth in range(4):
        assert counts.accepted[depth] / counts.rounds == pytest.approx(accepted[depth] / rounds, abs=0.03)


def test_block_accepts_no_less_than_rejection_and_the_bound_holds() -> None:
    tally = scored(passages_of(live("match", 0.9, 30, 120, 4), 0.9)).tallies[0.9]
    for block, rejection in zip(tally.counts["block"], tally.counts["rejection"], strict=True):
        assert block.tokens >= rejection.tokens
    coupled, bound = tally.first["match"].value, tally.everywhere.values()["bound"]
    assert coupled is not None
    assert bound is not None
    assert coupled >= bound
    assert tally.first["rejection"].value == pytest.approx(1.0 - (tally.everywhere.values()["tv"] or 0.0))


def test_a_model_is_its_own_perfect_draft() -> None:
    answers = live("match", 0.7, 4, 60, 4)
    guesses = ModelGuesses(FakeModel(VOCAB, logits=target_logits))
    tally = scored(passages_of(answers, 0.7), guesses).tallies[0.7]
    for rule in ("match", "rejection", "block"):
        assert tally.counts[rule][-1].acceptance == pytest.approx(1.0)
    assert tally.everywhere.values() == pytest.approx({"kl_pq": 0.0, "kl_qp": 0.0, "tv": 0.0, "bound": 1.0})


# --- heads ---------------------------------------------------------------------------------------------


def watched(logits: LogitsFunction) -> FakeModel:
    return FakeModel(VOCAB, logits=logits, features=("layer:1", "layer:2"))


@pytest.mark.parametrize("window", [0, 2])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_head_is_scored_as_a_draft_model_with_its_logits(temperature: float, window: int) -> None:
    answers = live("match", temperature, 6, 60, 4)
    passages = passages_of(answers, temperature)
    target = watched(target_logits)
    head = FakeHead(target, window=window, logits=draft_logits)
    by_head = scored(passages, HeadGuesses(head, rows=7), target).tallies[temperature]
    by_model = scored(passages).tallies[temperature]
    for mine, theirs in zip(by_head.counts["match"], by_model.counts["match"], strict=True):
        assert mine == theirs
    assert by_head.everywhere.values() == pytest.approx(by_model.everywhere.values())


def test_a_head_that_sees_one_token_only_is_worse_than_the_model() -> None:
    passages = passages_of(live("match", 0.0, 6, 60, 4), 0.0)
    target = watched(target_logits)
    head = FakeHead(target, window=1, logits=draft_logits)
    by_head = scored(passages, HeadGuesses(head), target).tallies[0.0]
    by_model = scored(passages).tallies[0.0]
    assert by_head.positions == by_model.positions
    assert (by_head.first["match"].value or 0.0) < (by_model.first["match"].value or 0.0)


@pytest.mark.parametrize("block", [3, 20])
def test_a_head_of_blocks_is_scored_as_a_draft_model_with_its_logits(block: int) -> None:
    """Greedy: a draft is right up to a token where the likeliest ones before are those of the text."""
    passages = passages_of(live("match", 0.0, 6, 60, 4), 0.0)
    target = watched(target_logits)
    head = FakeHead(target, block=block, logits=draft_logits)
    by_head = scored(passages, HeadGuesses(head, rows=7), target).tallies[0.0]
    by_model = scored(passages).tallies[0.0]
    for mine, theirs in list(zip(by_head.counts["match"], by_model.counts["match"], strict=True))[:block]:
        assert mine == theirs
    assert max(rows.logits for batch in head.batches for rows in batch) == min(block, DEPTHS)


# --- passages ------------------------------------------------------------------------------------------


def test_passages_cover_a_text_once_and_look_ahead() -> None:
    tokens = list(range(1000))
    found = list(of_text(tokens, temperature=0.0, seed=1, room=4096))
    scored_tokens = [token for one in found for token in one.tokens[one.first : one.end]]
    assert scored_tokens == tokens[8:]
    assert all(one.scored <= LENGTH for one in found)
    assert [one.room(one.end - 1) for one in found[:-1]] == [DEPTHS] * (len(found) - 1)
    assert found[-1].room(found[-1].end - 1) == 1


def test_passages_fit_into_a_small_context() -> None:
    for passage in of_text(list(range(500)), temperature=0.0, seed=1, room=48):
        assert len(passage.tokens) <= 48


def test_an_answer_cut_off_has_no_draft_of_its_last_token() -> None:
    [cut] = of_answer(PROMPT, [5, 6, 7], temperature=0.0, seed=1, cut=True)
    [ended] = of_answer(PROMPT, [5, 6, 7], temperature=0.0, seed=1, cut=False)
    assert [cut.room(start) for start in range(3, 6)] == [2, 1, 0]
    assert [ended.room(start) for start in range(3, 6)] == [3, 2, 1]


# --- figures -------------------------------------------------------------------------------------------


def test_distances_by_hand() -> None:
    p, q = np.array([0.5, 0.5, 0.0]), np.array([0.25, 0.25, 0.5])
    kl_pq, kl_qp, tv = distances(p, q)
    assert tv == pytest.approx(0.5)
    assert kl_pq == pytest.approx(np.log(2.0))
    assert kl_qp == pytest.approx(0.5 * np.log(0.5) + 0.5 * np.log(0.5 / 1e-9), rel=1e-6)


def test_counts_of_nothing() -> None:
    counts = Counts(3)
    assert counts.tokens == 1.0
    assert counts.by_depth == [None] * 3
    assert counts.acceptance is None
