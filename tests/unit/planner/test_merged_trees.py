"""Merged drafts: every beginning of the tree is the best tree of its size, and probabilities add up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.planner.acceptance import NEGLIGIBLE
from foredraft.planner.tree import Tree, TreeMerger
from foredraft.types import Draft


def chain(*tokens: int, source: str = "a") -> Draft:
    return Draft(tokens, source)


def merge(*drafts: tuple[Draft, Sequence[float]], merger: TreeMerger | None = None) -> Tree:
    merger = merger or TreeMerger()
    return merger.merge(1, [draft for draft, _ in drafts], [survival for _, survival in drafts])


def survival_of(draft: Draft, probabilities: Sequence[float]) -> list[float]:
    parents = range(-1, len(draft) - 1) if draft.parents is None else draft.parents
    survival: list[float] = []
    for parent, probability in zip(parents, probabilities, strict=True):
        survival.append(probability * (1.0 if parent < 0 else survival[parent]))
    return survival


@st.composite
def drafted(draw: st.DrawFn) -> list[tuple[Draft, list[float]]]:
    """Chains and trees of few tokens, so that they meet, with probabilities of any size."""
    found: list[tuple[Draft, list[float]]] = []
    for number in range(draw(st.integers(1, 4))):
        length = draw(st.integers(1, 9))
        tokens = tuple(draw(st.lists(st.integers(0, 3), min_size=length, max_size=length)))
        parents = None
        if draw(st.booleans()):
            parents = tuple(draw(st.integers(-1, i - 1)) for i in range(length))
            tokens = unlike_siblings(tokens, parents)
        draft = Draft(tokens, f"s{number}", parents)
        probabilities = draw(st.lists(st.floats(0.05, 1.0), min_size=length, max_size=length))
        found.append((draft, survival_of(draft, probabilities)))
    return found


def unlike_siblings(tokens: Sequence[int], parents: Sequence[int]) -> tuple[int, ...]:
    """A drafter never proposes the same token twice in one place."""
    seen: set[tuple[int, int]] = set()
    changed: list[int] = []
    for token, parent in zip(tokens, parents, strict=True):
        while (parent, token) in seen:
            token += 1  # noqa: PLW2901 - the next one that is free
        seen.add((parent, token))
        changed.append(token)
    return tuple(changed)


def paths(draft: Draft) -> set[tuple[int, ...]]:
    """The text of every node's path."""
    found: list[tuple[int, ...]] = []
    parents = range(-1, len(draft) - 1) if draft.parents is None else draft.parents
    for token, parent in zip(draft.tokens, parents, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return set(found)


def hopeful(draft: Draft, survival: Sequence[float]) -> set[tuple[int, ...]]:
    """The paths to all nodes that their own source gives a probability worth counting."""
    parents = range(-1, len(draft) - 1) if draft.parents is None else draft.parents
    every: list[tuple[int, ...]] = []
    for token, parent in zip(draft.tokens, parents, strict=True):
        every.append((*(every[parent] if parent >= 0 else ()), token))
    return {path for path, probability in zip(every, survival, strict=True) if probability >= NEGLIGIBLE}


# --- the tree ------------------------------------------------------------------------------------------


def test_common_beginnings_are_shared_and_differences_stand_side_by_side() -> None:
    tree = merge((chain(1, 2, 3), (0.9, 0.8, 0.7)), (chain(1, 2, 4, source="b"), (0.8, 0.6, 0.3)))
    assert len(tree.tokens) == 3, "there is no room for more than the longest draft has"
    longer = merge((chain(1, 2, 3, 9), (0.9, 0.8, 0.7, 0.0)), (chain(1, 2, 4, source="b"), (0.8, 0.6, 0.3)))
    draft = longer.cut(4)
    assert (draft.tokens, draft.parents) == ((1, 2, 3, 4), (-1, 0, 1, 1))
    assert draft.source == "a+b"


@given(drafted())
def test_probabilities_of_siblings_do_not_add_up_to_more_than_their_parents(
    drafts: list[tuple[Draft, list[float]]],
) -> None:
    tree = merge(*drafts)
    assert len(tree) <= max(len(draft) for draft, _ in drafts)
    below = dict.fromkeys(range(-1, len(tree)), 0.0)
    for parent, survival in zip(tree.parents, tree.survival, strict=True):
        below[parent] += survival
    assert below[-1] <= 1 + 1e-9
    assert all(below[node] <= survival + 1e-9 for node, survival in enumerate(tree.survival))


@given(drafted(), st.integers(1, 9))
def test_every_beginning_is_a_tree_of_what_was_drafted(
    drafts: list[tuple[Draft, list[float]]], length: int
) -> None:
    tree = merge(*drafts)
    assert list(tree.survival) == sorted(tree.survival, reverse=True)
    if not len(tree):
        return
    cut = tree.cut(min(length, len(tree)))
    assert len(cut) == len(paths(cut)), "no token stands twice in the same place"
    assert paths(cut) <= set().union(*(paths(draft) for draft, _ in drafts))
    if cut.parents is not None:
        assert all(-1 <= parent < i for i, parent in enumerate(cut.parents))
        assert cut.parents != tuple(range(-1, len(cut) - 1)), "a chain is a chain"
    proposers = [draft for draft, survival in drafts if paths(cut) <= hopeful(draft, survival)]
    if proposers:
        assert cut.source == proposers[0].source
    else:
        assert "+" in cut.source


@given(drafted())
def test_no_tree_of_the_same_size_is_expected_to_bring_more(drafts: list[tuple[Draft, list[float]]]) -> None:
    tree = merge(*drafts)
    for size in range(1, min(len(tree), 5) + 1):
        best = max(sum(tree.survival[node] for node in nodes) for nodes in subtrees(tree.parents, size))
        assert sum(tree.survival[:size]) == pytest.approx(best)


def subtrees(parents: Sequence[int], size: int) -> Iterator[tuple[int, ...]]:
    for nodes in combinations(range(len(parents)), size):
        if all(parents[node] < 0 or parents[node] in nodes for node in nodes):
            yield nodes


def test_one_source_is_taken_at_its_word() -> None:
    draft = Draft((1, 2, 3), "a", (-1, -1, 0))
    tree = merge((draft, (0.6, 0.3, 0.5)))
    assert tree.survival == pytest.approx([0.6, 0.5, 0.3])
    assert tree.cut(3) == Draft((1, 3, 2), "a", (-1, 0, -1))


def test_a_cut_that_is_a_chain_is_one_draft_of_its_source() -> None:
    tree = merge((chain(1, 2), (0.9, 0.8)), (chain(5, 6, source="b"), (0.3, 0.2)))
    assert tree.cut(2) == Draft((1, 2), "a")


def test_what_is_hopeless_is_left_out() -> None:
    tree = merge((chain(1, 2, 3), (0.5, 0.004, 0.003)), (chain(7, source="b"), (0.001,)))
    assert list(tree.tokens) == [1]


def test_a_tree_pays_when_it_commits_more_than_it_costs() -> None:
    tree = merge((Draft((1, 2, 3, 4), "a", (-1, -1, 0, 1)), (0.5, 0.3, 0.25, 0.1)))
    assert list(tree.tokens) == [1, 2, 3, 4]
    assert tree.paying([0.0, 0.1, 0.2, 0.3, 0.4]) == pytest.approx([0.5, 0.8, 0.8, 0.8])
    assert tree.paying([0.0, 0.1, 0.2, 1.3, 1.4]) == pytest.approx([0.5, 0.8, 0.25, 0.35])
    assert tree.paying([0.0, 2.5, 2.5, 2.5, 2.5]) == [0.0] * 4, "nothing is so deep"


# --- learning ------------------------------------------------------------------------------------------


def test_how_often_the_second_is_right_is_learnt_from_the_text() -> None:
    drafts = ((chain(1, 8), (0.6, 0.0)), (chain(2, source="b"), (0.5,)))
    never, always = TreeMerger(), TreeMerger()
    for _ in range(100):
        merge(*drafts, merger=never)
        never.score(1, (1, 8))
        never_ranked = merge(*drafts, merger=never)
        never.score(1, (5,))
        merge(*drafts, merger=always)
        always.score(1, (2, 9))
    # Learnt is the probability given that those ranked above are wrong; both cannot be right.
    second = dict(zip(never_ranked.tokens, never_ranked.survival, strict=True))
    assert second[2] < 0.02
    assert second[1] == pytest.approx(0.5, abs=0.03)
    tree = merge(*drafts, merger=always)
    assert list(tree.tokens) == [2, 1], "now it is the likelier one"
    assert tree.survival[0] > 0.9


def test_two_that_agree_are_right_as_often_as_they_were() -> None:
    merger = TreeMerger()
    drafts = ((chain(1), (0.4,)), (chain(1, source="b"), (0.3,)))
    for _ in range(100):
        merge(*drafts, merger=merger)
        merger.score(1, (1,))
    assert merge(*drafts, merger=merger).survival[0] > 0.9


def test_a_request_that_is_over_is_forgotten() -> None:
    merger = TreeMerger()
    drafts = ((chain(1), (0.6,)), (chain(2, source="b"), (0.5,)))
    before = merge(*drafts, merger=merger).survival
    merger.forget(1)
    for _ in range(50):
        merger.score(1, (7,))
    assert merge(*drafts, merger=merger).survival == before
