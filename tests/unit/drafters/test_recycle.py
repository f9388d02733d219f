from __future__ import annotations

from collections.abc import Sequence

import pytest

from foredraft.drafters.recycle import BULK, MOST_READ, RecycleDrafter, create
from foredraft.drafters.recycle_table import SuccessorTable
from foredraft.errors import SpeculationStringError
from foredraft.protocols import Drafter, RequestView
from foredraft.testing import FakeModel, drafter_context, run_drafter
from foredraft.types import Draft, DraftLimit, Outcome


def new(*, width: int = 1, longest: int = 8, end: Sequence[int] = (), least: float = 0.0) -> RecycleDrafter:
    return RecycleDrafter(
        longest=longest,
        width=width,
        min_survival=least,
        end_tokens=frozenset(end),
        table=SuccessorTable(4, 1 << 18),
    )


def started(drafter: Drafter, tokens: Sequence[int], *, number: int = 1, scope: str = "") -> RequestView:
    request = RequestView(id=number, tokens=list(tokens), prompt_length=len(tokens), scope=scope)
    drafter.start(request)
    return request


def change(
    drafter: Drafter,
    request: RequestView,
    tokens: Sequence[int],
    *,
    kept: int | None = None,
    draft: Draft | None = None,
    accepted: int = 0,
) -> None:
    kept = len(request.tokens) if kept is None else kept
    request.tokens[kept:] = tokens
    drafter.observe(request, Outcome(kept, tuple(tokens), draft, accepted))


def draft(drafter: Drafter, request: RequestView, limit: int = 64, least: float = 0.0) -> Draft | None:
    return drafter.draft([(request, DraftLimit(limit, least))])[0]


def drafted(drafter: Drafter, request: RequestView, limit: int = 64) -> tuple[int, ...]:
    found = draft(drafter, request, limit)
    return found.tokens if found is not None else ()


# --- what is learned -----------------------------------------------------------------------------------


def test_the_prompt_is_learned() -> None:
    drafter = new()
    found = draft(drafter, started(drafter, [1, 2, 3, 4, 5, 1, 2]))
    assert found is not None
    assert found.tokens == (3, 4, 5, 1, 2, 3, 4, 5)
    assert found.parents is None
    assert dict(found.features) == {"match_length": 2, "count": 1, "own": 1}
    assert len(found.confidence) == 8


def test_of_a_very_long_prompt_the_end_is_learned() -> None:
    """Reading it holds every stream up."""
    drafter = new()
    request = started(drafter, [7, 8, 9] + [1] * MOST_READ + [3, 4, 5, 3, 4])
    assert drafted(drafter, request, 1) == (5,)
    change(drafter, request, [7, 8])
    assert drafted(drafter, request, 1) == ()


def test_two_tokens_are_asked_before_one() -> None:
    drafter = new()
    request = started(drafter, [1, 2, 3, 9, 2, 4, 8, 1, 2])
    assert drafted(drafter, request, 1) == (3,)
    change(drafter, request, [7, 2])
    found = draft(drafter, request, 1)
    assert found is not None
    assert (found.tokens, found.features["match_length"]) == ((7,), 1)


def test_other_drafters_rounds_and_plain_ones_are_learned_from() -> None:
    drafter = new()
    request = started(drafter, [1])
    for run in ([2, 3], [4], [5, 1]):
        change(drafter, request, run, draft=Draft((*run[:-1], 50), "another"), accepted=len(run) - 1)
    assert drafted(drafter, request, 5) == (2, 3, 4, 5, 1)


@pytest.mark.parametrize("size", [1, 3, BULK + 10])
def test_observed_text_is_learned_like_a_prompt(size: int) -> None:
    text = [(7 * i * i) % 997 for i in range(900)]
    observing, reading = new(), new()
    request = started(observing, text[:100])
    while len(request.tokens) < len(text):
        change(observing, request, text[len(request.tokens) :][:size])
    change(observing, request, text[300:302])
    assert drafted(observing, request) == drafted(reading, started(reading, [*text, *text[300:302]]))
    assert drafted(observing, request, 2) == tuple(text[302:304])


def test_requests_of_a_scope_learn_from_each_other() -> None:
    drafter = new()
    drafter.stop(started(drafter, [1, 2, 3, 4]))
    found = draft(drafter, started(drafter, [9, 2], number=2), 2)
    assert found is not None
    assert found.tokens == (3, 4)
    assert found.features["own"] == 0


# --- what must not show --------------------------------------------------------------------------------


def test_another_scope_s_text_is_never_drafted() -> None:
    drafter = new(width=4)
    secret = [1, 2, 3, 4, 5] * 3
    theirs = started(drafter, secret, number=1, scope="alice")
    change(drafter, theirs, [1])
    for end in ([1, 2], [4, 5], [5]):
        ours = started(drafter, end, number=2, scope="bob")
        assert draft(drafter, ours) is None
        drafter.stop(ours)
    ours = started(drafter, [3, 9, 3], number=2, scope="bob")
    assert set(drafted(drafter, ours)) == {9, 3}
    assert drafted(drafter, theirs, 2) == (2, 3)


def test_after_a_removal_the_history_counts_as_it_is() -> None:
    drafter = new()
    request = started(drafter, [1, 2, 3, 1, 2])
    change(drafter, request, [4, 1, 2])
    assert drafted(drafter, request, 1) == (4,)
    change(drafter, request, [], kept=5)
    found = draft(drafter, request, 1)
    assert found is not None
    assert found.tokens == (3,)
    change(drafter, request, [8, 1, 2], kept=3)  # the history is 1 2 3 8 1 2
    assert drafted(drafter, request, 3) == (3, 8, 1)


def test_removed_text_is_trusted_no_more_than_another_request_s() -> None:
    drafter = new()
    request = started(drafter, [1, 2, 3, 4])
    change(drafter, request, [5, 3], kept=1)
    found = draft(drafter, request, 1)
    assert found is not None
    assert (found.tokens, found.features["own"]) == ((4,), 0)


def test_an_outcome_after_a_removal_is_followed_from_the_right_place() -> None:
    drafter = new()
    request = started(drafter, [1, 2, 3, 4])
    change(drafter, request, [7], kept=2)
    change(drafter, request, [8, 2, 7])
    assert drafted(drafter, request, 1) == (8,)


# --- chains, trees and their ends ----------------------------------------------------------------------


def test_a_draft_ends_with_an_end_token() -> None:
    for width in (1, 3):
        drafter = new(end=[4], width=width)
        assert drafted(drafter, started(drafter, [1, 2, 3, 4, 5, 6, 1])) == (2, 3, 4)


def test_an_empty_or_unknown_history_drafts_nothing() -> None:
    drafter = new()
    assert draft(drafter, started(drafter, [])) is None
    assert draft(drafter, started(drafter, [1], number=2)) is None
    assert draft(drafter, started(drafter, [1, 2, 3], number=3)) is None


def test_what_was_confirmed_more_often_is_believed_more() -> None:
    shares = []
    for times in range(1, 7):
        drafter = new()
        found = draft(drafter, started(drafter, [1, 2] * times + [1]), 1)
        assert found is not None
        shares.append(found.confidence[0])
    assert shares == sorted(shares)
    assert shares[0] < 0.5 < shares[-1] < 1


def test_a_draft_ends_where_it_is_unlikely_to_survive() -> None:
    text = [*range(1, 20), 1, 2]
    for limit, configured in ((0.3, 0.0), (0.0, 0.3)):
        drafter = new(least=configured)
        found = draft(drafter, started(drafter, text), least=limit)
        assert found is not None
        survival = 1.0
        for chance in found.confidence:
            survival *= chance
        assert 0 < len(found) < 8
        assert survival >= 0.3
        further = drafter.draft([(RequestView(1, [*text, *found.tokens]), DraftLimit(1))])[0]
        assert further is not None
        assert survival * further.confidence[0] < 0.3
    drafter = new(least=1.0)
    assert len(drafted(drafter, started(drafter, text))) == 1


def test_where_the_model_verifies_trees_the_likelier_branches_come_first() -> None:
    drafter = new(width=2)
    text = [1, 2, 5, 6, 1, 3, 7, 8, 1, 2, 5, 6, 1, 2, 5, 6, 9, 1]
    found = draft(drafter, started(drafter, text), 6)
    assert found is not None
    assert found.parents is not None
    roots = [token for token, parent in zip(found.tokens, found.parents, strict=True) if parent == -1]
    assert roots == [2, 3]
    assert found.tokens[:3] == (2, 5, 6)
    survival: list[float] = []
    for parent, chance in zip(found.parents, found.confidence, strict=True):
        survival.append(chance * (survival[parent] if parent >= 0 else 1.0))
    assert survival == sorted(survival, reverse=True)
    for parent in range(-1, len(found)):
        assert sum(above == parent for above in found.parents) <= 2


def test_the_children_of_a_token_have_at_most_all_the_chance() -> None:
    drafter = new(width=4)
    found = draft(drafter, started(drafter, [1, 2, 1, 3, 1, 4, 1, 5, 1]), 40)
    assert found is not None
    assert found.parents is not None
    for parent in set(found.parents):
        chances = [c for above, c in zip(found.parents, found.confidence, strict=True) if above == parent]
        assert sum(chances) <= 1


def test_a_replay_follows_the_branch_that_was_right() -> None:
    text = [9, 1, 2, 5, 9, 1, 3, 6, 9, 1, 2, 5]  # the second time as the first, not as the last
    chains, trees = (run_drafter(new(width=width), text, prompt=10) for width in (1, 2))
    assert chains[0].tokens[0] == 3
    assert all(draft.parents is not None for draft in trees)
    assert len(trees) < len(chains)


# --- the stage -----------------------------------------------------------------------------------------


def test_trees_are_drafted_only_for_a_model_that_verifies_them() -> None:
    text = [1, 2, 1, 3, 1, 2, 1, 3, 1]
    for trees, options, branches in ((True, {}, True), (False, {}, False), (True, {"width": "1"}, False)):
        drafter = create(drafter_context(FakeModel(trees=trees)), {"min-p": "0", **options})
        found = draft(drafter, started(drafter, text))
        assert found is not None
        assert (found.parents is not None) == branches


def test_options() -> None:
    context = drafter_context(FakeModel(trees=False))
    drafter = create(context, {"max": "2", "k": "7", "min-p": "0"})
    assert len(drafted(drafter, started(drafter, [1, 2, 3, 4] * 3))) == 2
    cautious = create(context, {"min-p": "0.9"})
    assert len(drafted(cautious, started(cautious, [1, 2, 3, 4, 1]))) == 1


@pytest.mark.parametrize(
    "options",
    [{"k": "0"}, {"k": "16"}, {"max": "0"}, {"max": "64"}, {"width": "0"}, {"min-p": "1.5"}, {"n": "3"}],
)
def test_a_bad_option_is_named(options: dict[str, str]) -> None:
    with pytest.raises(SpeculationStringError, match=next(iter(options))):
        create(drafter_context(), options)


def test_the_model_s_end_tokens_end_drafts() -> None:
    model = FakeModel(12)
    end = min(model.tokenizer.end_tokens)
    drafter = create(drafter_context(model), {"min-p": "0"})
    assert drafted(drafter, started(drafter, [1, 2, end, 3, 4, 1])) == (2, end)
