"""Several continuations as one tree: the likeliest as ever, and others beside it where a text went on so."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drafter_cases import commit, draft, occurred, start
from foredraft.drafters.suffix import SuffixDrafter, create
from foredraft.drafters.suffix_vote import MIN_BRANCH, Branch, branches, grow, vote
from foredraft.testing import FakeModel, drafter_context, run_drafter
from foredraft.types import Draft

TEXTS = st.lists(st.integers(0, 3), min_size=2, max_size=60)
DISPUTED = [50, 1, 2, 3, 7, 9, 51, 1, 2, 3, 8, 9, 52, 1, 2, 3, 7, 9, 53, 1, 2, 3]
"""Its end was seen three times: 7 followed twice and 8 once."""


def survival(tree: Draft) -> list[float]:
    found: list[float] = []
    for parent, chance in zip(tree.parents or (), tree.confidence, strict=True):
        found.append(chance * (1.0 if parent < 0 else found[parent]))
    return found


# --- growing -------------------------------------------------------------------------------------------


def test_branches_share_what_they_have_in_common() -> None:
    branches = [Branch(1, (5, 6), (0.3, 0.9)), Branch(1, (5, 7), (0.2, 0.5)), Branch(0, (9,), (0.1,))]
    tree = grow((1, 2), (0.8, 0.6), branches, limit=9, min_survival=0.0)
    assert tree.tokens == (1, 2, 5, 6, 7, 9)
    assert tree.parents == (-1, 0, 0, 2, 2, -1)
    assert tree.confidence == (0.8, 0.6, 0.3, 0.9, 0.5, 0.1)


def test_a_tree_has_the_likeliest_nodes_that_there_is_room_for() -> None:
    tree = grow((1, 2, 3), (0.9, 0.5, 0.2), [Branch(0, (4,), (0.3,))], limit=3, min_survival=0.0)
    assert tree.tokens == (1, 2, 4)
    unlikely = grow((1, 2, 3), (0.9, 0.5, 0.2), [Branch(0, (4,), (0.3,))], limit=9, min_survival=0.4)
    assert unlikely.tokens == (1, 2)
    assert grow((1,), (0.1,), [], limit=3, min_survival=0.9).tokens == (1,), "one token in any case"


# --- voting --------------------------------------------------------------------------------------------


def test_who_outvotes_whom_is_as_without_branches() -> None:
    matches = [occurred([4, 4, 4], [[5, 6, 7], [5, 6, 8], [9, 9, 9]], False)]
    chain = vote(matches, 3)
    assert chain is not None
    assert chain.tokens == [5, 6, 7]
    others = branches(chain, 4)
    assert {(branch.after, tuple(branch.tokens)[:1]) for branch in others} == {(2, (8,)), (0, (9,))}
    assert len(branches(chain, 1)) == 1


def test_a_branch_is_surer_the_more_go_that_way() -> None:
    def second(*texts: Sequence[int]) -> float:
        matches = [occurred([6] * len(texts), texts, False)]
        chosen = vote(matches, 2)
        assert chosen is not None
        others = branches(chosen, 2)
        return next(branch.confidence[0] for branch in others if branch.tokens[0] == 9)

    assert second([5, 6], [9, 9], [9, 9], [5, 6]) > second([5, 6], [9, 9], [5, 6], [5, 6])


# --- the drafter ---------------------------------------------------------------------------------------


def test_both_continuations_are_drafted_where_trees_are_verified() -> None:
    drafter = SuffixDrafter(branches=4)
    tree = draft(drafter, start(drafter, DISPUTED))
    assert tree is not None
    assert tree.parents is not None
    firsts = [token for token, parent in zip(tree.tokens, tree.parents, strict=True) if parent < 0]
    assert firsts == [7, 8], "the likelier one first"
    chain_drafter = SuffixDrafter()
    chain = draft(chain_drafter, start(chain_drafter, DISPUTED))
    assert chain is not None
    assert chain.parents is None
    assert chain.features == tree.features


@pytest.mark.parametrize("trees", [False, True])
def test_the_target_says_whether_there_are_trees(trees: bool) -> None:
    drafter = create(drafter_context(FakeModel(trees=trees)), {"min-p": "0"})
    found = draft(drafter, start(drafter, DISPUTED))
    assert found is not None
    assert (found.parents is not None) == trees


@given(TEXTS, st.integers(1, 12))
def test_trees_are_trees_within_their_limit_and_surest_first(text: list[int], limit: int) -> None:
    for found in run_drafter(SuffixDrafter(branches=4), text, prompt=1, limit=limit):
        assert 0 < len(found) <= limit
        assert len(found.confidence) == len(found)
        if found.parents is None:
            continue
        assert all(-1 <= parent < i for i, parent in enumerate(found.parents))
        places = list(zip(found.parents, found.tokens, strict=True))
        assert len(set(places)) == len(places), "no token stands twice in one place"
        reached = survival(found)
        assert reached == sorted(reached, reverse=True)
        assert all(chance >= MIN_BRANCH for chance in reached[1:])


@given(TEXTS)
def test_the_likeliest_continuation_is_the_chain_that_would_be_drafted(text: list[int]) -> None:
    tree_drafter, chain_drafter = SuffixDrafter(branches=4), SuffixDrafter()
    tree = draft(tree_drafter, start(tree_drafter, text))
    chain = draft(chain_drafter, start(chain_drafter, text))
    assert (tree is None) == (chain is None)
    if tree is not None and chain is not None:
        assert tree.tokens[0] == chain.tokens[0]
        assert tree.confidence[0] == chain.confidence[0]


def test_the_way_back_to_copied_text_stands_beside_other_matches() -> None:
    """One token was replaced: the text may go on as after the replaced one, or as after the new one."""
    source = [11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22]
    drafter = SuffixDrafter(branches=4)
    request = start(drafter, [30, 40, 31, *source, 30, 41, 32, *source[:6]])
    first = draft(drafter, request)
    assert first is not None
    assert first.tokens[0] == 17
    commit(drafter, request, [30])  # in place of 17
    tree = draft(drafter, request)
    assert tree is not None
    assert tree.parents is not None
    firsts = {token for token, parent in zip(tree.tokens, tree.parents, strict=True) if parent < 0}
    assert {18, 41} <= firsts
