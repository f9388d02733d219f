"""Probabilities that draft tokens are accepted, learnt from what was written."""

from __future__ import annotations

import json
import random

import pytest

from foredraft.planner.acceptance import Acceptance, caution, depth_of, sampled
from foredraft.types import Draft


def draft(*tokens: int, source: str = "a", confidence: float = 0.8, match: int = 4, **more: float) -> Draft:
    features = {"match_length": float(match), **more}
    return Draft(tokens, source, confidence=(confidence,) * len(tokens), features=features)


def train(model: Acceptance, rounds: int, probability: float, *, source: str = "a", seed: int = 1) -> None:
    """Drafts of one token each, right with this probability."""
    rng = random.Random(seed)
    for _ in range(rounds):
        token = rng.randrange(10_000)
        model.survivals(1, [draft(token, source=source)], 5)
        model.score(1, [token if rng.random() < probability else token + 1])


def first(model: Acceptance, *drafts: Draft, deviations: float = 0.0) -> float:
    found = model.survivals(2, drafts, 5, deviations)[0][0]
    model.forget(2)
    return found


def test_before_anything_is_known_a_drafter_is_taken_at_its_word() -> None:
    model = Acceptance()
    assert first(model, draft(7, confidence=0.9)) == pytest.approx(0.9)
    assert first(model, draft(7, confidence=0.3)) == pytest.approx(0.3)


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_confidence_gives_way_to_what_happened(probability: float) -> None:
    model = Acceptance()
    train(model, 400, probability)
    assert first(model, draft(20_000)) == pytest.approx(probability, abs=0.12)


def test_drafters_are_judged_by_themselves() -> None:
    model = Acceptance()
    train(model, 200, 0.05, source="a")
    assert first(model, draft(7, source="b")) > 2 * first(model, draft(7, source="a"))


def test_the_longer_match_is_another_row_of_the_table() -> None:
    model = Acceptance()
    train(model, 200, 0.05)
    assert first(model, draft(7, match=32)) > 2 * first(model, draft(7, match=4))


def test_a_token_that_is_often_wrong_is_less_likely_than_others() -> None:
    model, rng = Acceptance(), random.Random(3)
    for _ in range(300):
        token = rng.choice([11, 12])
        model.survivals(1, [draft(token)], 5)
        model.score(1, [token if token == 11 else 99])
    assert first(model, draft(11)) > 0.8 > 0.3 > first(model, draft(12))


def test_agreement_makes_a_token_likelier_and_dispute_less_likely() -> None:
    model = Acceptance()
    alone = first(model, draft(7))
    assert first(model, draft(7), draft(7, source="b")) > alone
    assert first(model, draft(7), draft(8, source="b")) < alone


def test_survival_falls_along_a_chain_and_is_nothing_where_it_is_negligible() -> None:
    model = Acceptance()
    [chain] = model.survivals(1, [draft(*range(40), confidence=0.5)], 5)
    assert chain == sorted(chain, reverse=True)
    assert chain[-1] == 0.0


def test_survival_in_a_tree_follows_its_paths() -> None:
    tree = Draft((1, 2, 3), "a", parents=(-1, -1, 1), confidence=(0.6, 0.3, 0.5))
    [found] = Acceptance().survivals(1, [tree], 5)
    assert found == pytest.approx([0.6, 0.3, 0.15])
    assert depth_of(tree) == 2


def test_only_tokens_whose_ancestors_were_right_say_anything() -> None:
    model = Acceptance()
    model.survivals(1, [draft(1, 2, 3), draft(1, 9, source="b")], 5)
    assert model.score(1, [1, 2, 8]) == [("a", 2, 1), ("b", 1, 1)]
    assert model.score(1, [1, 2, 8]) == [], "once"


def test_a_trees_path_is_scored() -> None:
    model = Acceptance()
    model.survivals(1, [Draft((1, 2, 3), "a", parents=(-1, -1, 1))], 5)
    assert model.score(1, [2, 3, 4]) == [("a", 2, 0)]


def test_of_siblings_the_accepted_one_was_right_and_the_others_wrong() -> None:
    model = Acceptance()
    tree = Draft((1, 2, 3, 4), "a", (-1, -1, 0, 1), confidence=(0.55, 0.2, 0.75, 0.9))
    for _ in range(200):
        model.survivals(1, [tree], 5)
        model.score(1, [2, 4])
    [found] = model.survivals(2, [tree], 5)
    assert found[0] < 0.1
    assert found[1] > 0.9
    assert found[3] > 0.85 * found[1]


def test_caution_lowers_probabilities_and_grows_with_the_batch() -> None:
    model = Acceptance()
    assert first(model, draft(7), deviations=caution(1)) < first(model, draft(7))
    assert caution(8) > caution(2) > caution(1)


def test_a_sampled_draft_is_the_one_to_verify() -> None:
    import numpy as np

    plain, drawn = draft(1), Draft((2,), "b", probs=(np.ones(4) / 4,))
    assert sampled([plain, drawn]) is drawn
    assert sampled([plain]) is None


def test_what_was_learnt_can_be_stored_and_counts_for_less() -> None:
    model, restored = Acceptance(), Acceptance()
    train(model, 400, 0.1)
    restored.load_state(json.loads(json.dumps(model.state())))
    assert first(restored, draft(20_000)) < 0.5
    train(restored, 100, 0.95, seed=2)
    train(model, 100, 0.95, seed=2)
    assert first(restored, draft(20_000)) > first(model, draft(20_000))


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"counts": 3, "mixes": [], "weights": None},
        {"counts": {"a": [1, 2], "a|x|1": [1, 2], "a|1|1": [1], "b|1|2": [float("nan"), 1]}},
        {"mixes": {"a": [1, 2, 3], "a|2|x": 1}, "weights": {"x": 1, "99999999": 1.0, "12": "a", "-1": 2.0}},
    ],
)
def test_what_is_no_state_is_left_out(state: dict[str, object]) -> None:
    model = Acceptance()
    model.load_state(state)
    assert first(model, draft(7)) == pytest.approx(0.8)
