"""What tokens themselves say of a draft: which one, after which, copied from where."""

from __future__ import annotations

import json
import random
from math import log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.planner.tables.calibration import Survival
from foredraft.planner.tables.lexical import EXPORTED, NONE, ROW, Lexical, moved
from foredraft.planner.tables.reading import NEGLIGIBLE
from foredraft.types import Draft, Outcome

NEWLINE, NAME, OTHER = 198, 4711, 523
TOKENS = st.integers(NONE, 1 << 20)


def said(*tokens: int, source: str = "s", **features: float) -> Draft:
    return Draft(tokens, source, confidence=(0.7,) * len(tokens), features=features)


def learn(survival: Survival, draft: Draft, right: int, last: int = OTHER, times: int = 30) -> None:
    """Of the draft's tokens the first `right` were right."""
    for _ in range(times):
        survival.remember(1, [draft], last)
        survival.score(1, Outcome(5, (*draft.tokens[:right], 1 << 20)))


def first(survival: Survival, draft: Draft, last: int = OTHER) -> float:
    return survival.estimate(draft, last=last)[0]


# --- what is learnt --------------------------------------------------------------------------------------


def test_what_was_right_before_is_likelier_than_what_was_wrong() -> None:
    survival = Survival()
    for _ in range(20):  # the drafter is right half of the time, and says no more than that
        learn(survival, said(NEWLINE), 1, times=1)
        learn(survival, said(NAME), 0, times=1)
    assert first(survival, said(NEWLINE)) > 0.75
    assert first(survival, said(NAME)) < 0.25
    assert 0.25 < first(survival, said(77), last=78) < 0.75, "a token that was never seen"


def test_the_token_before_counts() -> None:
    survival = Survival()
    for _ in range(20):
        learn(survival, said(NAME), 1, last=1, times=1)
        learn(survival, said(NAME), 0, last=2, times=1)
    assert first(survival, said(NAME), last=1) > 0.7 > 0.3 > first(survival, said(NAME), last=2)
    assert first(survival, said(55), last=1) > first(survival, said(55), last=2), "with other tokens, too"


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        (said(NAME, 1), said(NAME, 2)),
        (said(NAME, match_length=1), said(NAME, match_length=3)),
        (said(NAME, from_prompt=1), said(NAME, from_prompt=0)),
        (said(NAME, from_store=1), said(NAME, from_store=0, from_prompt=0)),
    ],
    ids=["what follows", "the match", "from the prompt", "from past outputs"],
)
def test_so_does(good: Draft, bad: Draft) -> None:
    survival = Survival()
    for _ in range(30):
        learn(survival, good, 1, times=1)
        learn(survival, bad, 0, times=1)
    assert first(survival, good) > first(survival, bad) + 0.2


def test_in_a_tree_the_token_before_is_the_parent() -> None:
    def tree(leaf: int) -> Draft:
        return Draft((1, 2, leaf), "s", parents=(-1, -1, 1), confidence=(0.7,) * 3)

    survival = Survival()
    for _ in range(30):
        learn(survival, said(2, NAME), 2, times=1)
        learn(survival, said(1, NAME), 1, times=1)
    after = survival.conditional(tree(NAME), last=OTHER)[2]
    turned = Draft((1, 2, NAME), "s", parents=(-1, -1, 0), confidence=(0.7,) * 3)
    assert after > survival.conditional(turned, last=OTHER)[2] + 0.1


def test_all_sources_learn_together() -> None:
    survival = Survival()
    learn(survival, said(NEWLINE, source="a"), 1)
    assert first(survival, said(NEWLINE, source="b")) > first(Survival(), said(NEWLINE, source="b")) + 0.05


def test_it_is_learnt_with_what_another_draft_says() -> None:
    """Two drafts that agree: each one's tokens are weighed beside the mixed estimate, not beside its own."""
    survival = Survival()
    drafts = [said(NEWLINE, source="a"), said(NEWLINE, source="b")]

    def now() -> list[list[float]]:
        survival.remember(1, drafts, OTHER)
        return survival.estimates(drafts, request=1)

    before = now()
    for _ in range(30):
        survival.remember(1, drafts, OTHER)
        survival.score(1, Outcome(5, (NEWLINE,)))
        survival.remember(1, [said(NAME, source="a"), said(NAME, source="b")], OTHER)
        survival.score(1, Outcome(5, (OTHER,)))
    assert all(after[0] > then[0] for after, then in zip(now(), before, strict=True))


def test_text_whose_tokens_differ_is_foretold_better() -> None:
    """Log loss beside that of a table which does not know tokens; it approaches that of knowing all."""
    rng, survival = random.Random(5), Survival()
    chances = {token: rng.random() for token in range(1000, 1040)}
    loss: list[float] = []
    for _ in range(4000):
        token = rng.choice(list(chances))
        right = rng.random() < chances[token]
        estimate = first(survival, said(token))
        loss.append(-log(estimate if right else 1.0 - estimate))
        learn(survival, said(token), int(right), times=1)
    average = sum(chances.values()) / len(chances)
    blind = -average * log(average) - (1 - average) * log(1 - average)
    best = sum(-p * log(p) - (1 - p) * log(1 - p) for p in chances.values()) / len(chances)
    late = sum(loss[2000:]) / 2000
    assert late < blind - 0.6 * (blind - best)


def test_tokens_after_a_wrong_one_teach_nothing() -> None:
    survival = Survival()
    learn(survival, said(1, NAME), 0)
    unknown = first(survival, said(999), last=998)
    assert first(survival, said(NAME), last=998) == unknown


# --- numbers ---------------------------------------------------------------------------------------------


@given(st.floats(0, 1), st.floats(-30, 30), st.floats(-30, 30))
def test_odds_move_a_chance_and_keep_it_one(chance: float, odds: float, more: float) -> None:
    assert 0.0 <= moved(chance, odds) <= 1.0
    assert moved(chance, 0.0) == chance
    low, high = sorted((odds, more))
    assert moved(chance, low) <= moved(chance, high) + 1e-12
    if 0.01 < chance < 0.99 and abs(odds) < 10:
        there = moved(chance, odds)
        assert log(there / (1 - there)) - log(chance / (1 - chance)) == pytest.approx(odds, abs=1e-6)


@given(TOKENS, TOKENS, TOKENS, st.integers(0, 64), st.integers(0, 3))
def test_what_is_learnt_is_what_is_read(
    before: int, token: int, following: int, match: int, origin: int
) -> None:
    lexical = Lexical()
    assert lexical.odds(before, token, following, match, origin) == 0.0
    lexical.add(before, token, following, match, origin, error=0.5)
    assert 0.5 < lexical.odds(before, token, following, match, origin) < 2.0
    lexical.add(before, token, following, match, origin, error=-0.5)
    assert lexical.odds(before, token, following, match, origin) == pytest.approx(0.0, abs=0.3)


def test_tokens_side_by_side_in_a_vocabulary_are_told_apart() -> None:
    lexical = Lexical()
    lexical.add(OTHER, NAME, NONE, 2, 1, error=-1.0)
    there = lexical.odds(OTHER, NAME, NONE, 2, 1)
    near = [lexical.odds(OTHER + by, NAME + 3 * by, NONE, 2, 1) for by in range(1, 3000)]
    assert sum(odds < 0.2 * there for odds in near) < 10
    assert len(lexical.export()) == 6


# --- what is kept ----------------------------------------------------------------------------------------


def test_what_was_learnt_is_kept() -> None:
    survival = Survival()
    for _ in range(20):
        learn(survival, said(NEWLINE), 1, times=1)
        learn(survival, said(NAME), 0, times=1)
    again = Survival()
    again.recall(json.loads(json.dumps(survival.knowledge())))
    for draft in (said(NEWLINE), said(NAME)):
        assert first(again, draft) == pytest.approx(first(survival, draft), abs=0.05)


def test_no_more_is_kept_than_says_most() -> None:
    lexical, rng = Lexical(), random.Random(1)
    for token in range(4000):
        lexical.add(token, token + 1, NONE, 0, 2, error=rng.uniform(-1, 1))
    kept = lexical.export()
    assert len(kept) == EXPORTED
    again = Lexical()
    again.restore(kept)
    assert again.export() == kept
    left_out = [abs(weight) for at, weight in enumerate(lexical.weights()) if str(at) not in kept]
    assert max(left_out) <= min(map(abs, kept.values())) + 1e-3


def test_what_does_not_look_like_weights_is_left_out() -> None:
    lexical = Lexical()
    lexical.restore(
        {"-1": 1.0, "9999999": 1.0, "x": 1.0, "1": "2", "2": True, "3": float("nan"), "4": 1e9, "5": None}
    )
    assert lexical.export() == {}
    lexical.restore({"7": 0.5, "8": -1})
    assert lexical.export() == {"8": -1.0, "7": 0.5}


def test_a_drafter_may_say_strange_things_of_its_drafts() -> None:
    survival = Survival()
    survival.lexical.add(NAME, NAME + 1, NONE, 4, 3, error=1.0)
    learn(survival, said(0, 1, match_length=-40, from_prompt=9), 1)
    learn(survival, said(0, 1, match_length=1e9, from_prompt=float("nan")), 1)
    assert 0.0 < first(survival, said(0, match_length=-40, from_prompt=-3)) < 1.0
    changed = {int(place) // ROW for place in survival.lexical.export() if int(place) < ROW << 15}
    assert changed == {0, 1, OTHER, NAME, NAME + 1}, "rows of these tokens and no other's"


def test_hopeless_stays_hopeless() -> None:
    survival = Survival()
    learn(survival, said(NAME), 0, times=400)
    assert first(survival, said(NAME)) < 0.05
    assert survival.estimate(said(*[NAME] * 30), last=OTHER)[-1] <= NEGLIGIBLE
