"""Survival: learnt from every candidate, whether it was verified or not, and never for good."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foredraft.planner.tables.calibration import Survival, depth_of, sampled
from foredraft.types import Draft, Outcome
from planner_rounds import BONUS, chain

drafts = st.builds(
    lambda length, match, confidence: Draft(
        tuple(range(length)), "s", confidence=tuple(confidence[:length]), features={"match_length": match}
    ),
    st.integers(1, 12),
    st.integers(0, 50),
    st.lists(st.floats(0, 1), max_size=12),
)


def learn(survival: Survival, draft: Draft, accepted: int, times: int = 1, *, verified: bool = True) -> None:
    """`accepted` tokens of the draft were right, `times` over; unless `verified` they were not drafted."""
    for _ in range(times):
        survival.remember(1, [draft])
        if verified:
            tokens = (*draft.tokens[:accepted], BONUS)
            survival.score(1, Outcome(5, tokens, draft, accepted))
        else:
            survival.score(1, Outcome(5, (draft.tokens[0] if accepted else BONUS,)))


@given(draft=drafts, caution=st.floats(0, 3), history=st.lists(st.integers(0, 12), max_size=20))
@settings(deadline=None)
def test_survival_is_a_probability_that_falls_along_a_draft(
    draft: Draft, caution: float, history: list[int]
) -> None:
    survival = Survival()
    for accepted in history:
        learn(survival, draft, min(accepted, len(draft)))
    estimate = survival.estimate(draft, caution)
    assert len(estimate) == len(draft)
    assert all(0.0 <= value <= 1.0 for value in estimate)
    assert estimate == sorted(estimate, reverse=True)
    plain = survival.estimate(draft)
    rounding = 1e-12  # of a logit and back, where hardly any caution is asked for
    assert all(low <= high + rounding for low, high in zip(estimate, plain, strict=True))


@given(draft=drafts, least=st.floats(0.0, 1.0))
@settings(deadline=None)
def test_under_the_least_that_is_worth_a_row_nothing_is_worked_out(draft: Draft, least: float) -> None:
    survival = Survival()
    [whole], [cut] = (survival.estimates([draft], least=it) for it in (0.0, least))
    assert cut[0] == whole[0], "what is said of a draft begins with its first token"
    assert cut[1:] == [value if value >= least else 0.0 for value in whole[1:]]


def test_a_drafter_s_confidence_counts_until_there_is_experience() -> None:
    survival = Survival()
    sure, unsure = Draft((1,), "s", confidence=(0.95,)), Draft((1,), "s", confidence=(0.2,))
    assert survival.estimate(sure)[0] > 0.8 > 0.4 > survival.estimate(unsure)[0]
    for _ in range(100):  # in turns: that it is the same token says nothing
        learn(survival, sure, 0)
        learn(survival, unsure, 1)
    assert survival.estimate(sure)[0] < 0.2 < 0.8 < survival.estimate(unsure)[0]


def test_experience_makes_it_less_cautious() -> None:
    survival, draft = Survival(), Draft((1,), "s", confidence=(0.9,))
    before = survival.estimate(draft)[0] - survival.estimate(draft, 1.0)[0]
    for accepted in ([1] * 9 + [0]) * 6:
        learn(survival, draft, accepted)
    assert survival.estimate(draft)[0] - survival.estimate(draft, 1.0)[0] < before / 1.5


def test_candidates_that_were_not_verified_are_scored_as_well() -> None:
    seen, unseen = Survival(), Survival()
    for survival, accepted in ((seen, 1), (unseen, 0)):
        before = survival.estimate(chain(1))[0]
        learn(survival, chain(1), accepted, 20, verified=False)
        assert (survival.estimate(chain(1))[0] > before) == bool(accepted)


def test_tokens_after_a_wrong_one_say_nothing() -> None:
    survival = Survival()
    draft = chain(3, match_length=1)  # the depths fall into cells of their own
    before = survival.conditional(draft)
    learn(survival, draft, 1, 50)
    after = survival.conditional(draft)
    assert after[0] > before[0]
    assert after[1] < before[1]
    assert after[2] == before[2]


def test_sources_and_match_lengths_are_told_apart() -> None:
    survival = Survival()
    for _ in range(50):
        learn(survival, chain(1, "good", match_length=2), 1)
        learn(survival, chain(1, "bad", match_length=2), 0)
        learn(survival, chain(1, "good", match_length=20), 0)
    estimates = [
        survival.estimate(chain(1, source, match_length=match))[0]
        for source, match in (("good", 2), ("bad", 2), ("good", 20))
    ]
    assert estimates[0] > 0.9
    assert max(estimates[1:]) < 0.1


def test_old_experience_is_forgotten() -> None:
    survival = Survival()
    learn(survival, chain(1), 1, 5000)
    learn(survival, chain(1), 0, 400)
    assert survival.estimate(chain(1))[0] < 0.4
    learn(survival, chain(1), 1, 400)
    assert survival.estimate(chain(1))[0] > 0.6


def test_a_finished_request_is_not_scored() -> None:
    survival = Survival()
    before = survival.estimate(chain(1))
    survival.remember(1, [chain(1)])
    survival.forget(1)
    survival.score(1, Outcome(5, (BONUS,)))
    survival.score(2, Outcome(5, (BONUS,)))
    assert survival.estimate(chain(1)) == before


def test_candidates_are_scored_once() -> None:
    once, twice = Survival(), Survival()
    for survival, times in ((once, 1), (twice, 2)):
        survival.remember(1, [chain(1)])
        for _ in range(times):
            survival.score(1, Outcome(5, (BONUS,)))
    assert once.estimate(chain(1)) == twice.estimate(chain(1))


def test_a_sampled_draft_is_found_among_others() -> None:
    probs = np.full(4, 0.25)
    drawn = Draft((1,), "draft-model", probs=(probs,))
    assert sampled([chain(3), drawn]) is drawn
    assert sampled([chain(3)]) is None
    assert sampled([]) is None


@pytest.mark.parametrize("share", [0.3, 0.7, 0.95])
def test_estimates_come_out_calibrated(share: float) -> None:
    survival, rng = Survival(), np.random.default_rng(3)
    estimates = []
    for right in rng.random(2000) < share:
        estimates.append(survival.estimate(chain(1))[0])
        learn(survival, chain(1), int(right))
    known = estimates[100:]
    assert np.mean(known) == pytest.approx(share, abs=0.03)
    assert np.std(known) < 0.1


TREE = Draft((1, 2, 3, 4), "t", parents=(-1, -1, 0, 1), confidence=(0.6, 0.3, 0.9, 0.75))
"""1 → 3 and 2 → 4."""


def test_in_a_tree_a_token_survives_with_its_parent() -> None:
    survival = Survival()
    chances = survival.conditional(TREE)
    expected = [chances[0], chances[1], chances[0] * chances[2], chances[1] * chances[3]]
    assert survival.estimate(TREE) == pytest.approx(expected)


def test_in_a_tree_the_path_taken_is_right_and_its_siblings_are_wrong() -> None:
    survival = Survival()
    before = survival.conditional(TREE)
    for _ in range(30):
        survival.remember(1, [TREE])
        [score] = survival.score(1, Outcome(5, (2, 4, BONUS), TREE, 2))
        assert (score.source, score.right, score.wrong) == ("t", 2, 0)
    after = survival.conditional(TREE)
    assert after[0] < before[0]
    assert after[1] > before[1]
    assert after[2] == before[2], "its parent was wrong"
    assert after[3] > before[3]


def test_a_score_counts_what_was_tried() -> None:
    def score(tokens: tuple[int, ...]) -> tuple[int, int]:
        survival = Survival()
        survival.remember(1, [Draft((1, 2, 3), "s")])
        [score] = survival.score(1, Outcome(5, tokens))
        return score.right, score.wrong

    assert score((1, 2, 9)) == (2, 1)
    assert score((9,)) == (0, 1)
    assert score((1,)) == (1, 0), "the target's token ended first"
    assert score((1, 2, 3, 9)) == (3, 0)


def test_the_depth_of_a_draft_is_its_longest_path() -> None:
    assert depth_of(Draft((1, 2, 3), "s")) == 3
    assert depth_of(Draft((1, 2, 3, 4), "s", (-1, -1, 0, 2))) == 3


@pytest.mark.parametrize(
    ("tokens", "right", "wrong"),
    [
        ((9, BONUS), 1, 1),
        ((1, 9, BONUS), 2, 1),
        ((1, 2, 3, BONUS), 3, 0),
        ((1, 2, 9, BONUS), 3, 0),
        ((9,), 1, 0),
        ((BONUS,), 0, 1),
    ],
)
def test_a_right_token_that_nothing_is_built_on_is_not_right_to_the_end(
    tokens: tuple[int, ...], right: int, wrong: int
) -> None:
    """But as deep as the draft goes there is nothing more to be right, and where the target's tokens end
    nobody knows.
    """
    survival = Survival()
    survival.remember(1, [Draft((1, 9, 2, 9, 3, 9), "t", parents=(-1, -1, 0, 0, 2, 2))])
    [score] = survival.score(1, Outcome(5, tokens))
    assert (score.right, score.wrong) == (right, wrong)


def test_a_drafter_may_give_lists() -> None:
    survival = Survival()
    lists: Draft = Draft([1, 2, 3], "t", [-1, -1, 1], [0.6, 0.3, 0.9])  # type: ignore[arg-type]
    tuples = Draft((1, 2, 3), "t", (-1, -1, 1), (0.6, 0.3, 0.9))
    assert survival.estimate(lists) == survival.estimate(tuples)
    survival.remember(1, [lists])
    [score] = survival.score(1, Outcome(5, (2, 3)))
    assert (score.right, score.wrong) == (2, 0)
