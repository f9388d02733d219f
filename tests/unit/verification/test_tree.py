"""The match rule on trees."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from foredraft.verification.chain import verify_chain
from foredraft.verification.tree import verify_tree


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    size = draw(st.integers(0, 12))
    tokens = [draw(st.integers(0, 2)) for _ in range(size)]
    parents = [draw(st.integers(-1, index - 1)) for index in range(size)]
    return tokens, parents


def text_of(node: int, tokens: list[int], parents: list[int]) -> tuple[int, ...]:
    return () if node < 0 else (*text_of(parents[node], tokens, parents), tokens[node])


@given(tree=trees(), future=st.lists(st.integers(0, 2), min_size=13, max_size=13))
def test_commits_the_longest_drafted_prefix_and_one_more(
    tree: tuple[list[int], list[int]], future: list[int]
) -> None:
    tokens, parents = tree
    rows: list[int] = []

    def choose(row: int) -> int:
        # What the target would say depends on the row's own text; the walk must ask about the right row.
        assert text_of(row - 1, tokens, parents) == tuple(future[: len(rows)])
        rows.append(row)
        return future[len(rows) - 1]

    verdict = verify_tree(tokens, parents, choose)
    drafted = {text_of(node, tokens, parents) for node in range(len(tokens))}
    longest = 0
    while tuple(future[: longest + 1]) in drafted:
        longest += 1
    assert verdict.tokens == tuple(future[: longest + 1])
    assert verdict.accepted == longest
    assert len(rows) == longest + 1
    for depth, node in enumerate(verdict.path):
        assert parents[node] == (verdict.path[depth - 1] if depth else -1)
        assert tokens[node] == future[depth]


@given(seed=st.integers(0, 10_000), length=st.integers(0, 6))
def test_a_chain_is_a_tree(seed: int, length: int) -> None:
    rng = np.random.default_rng(seed)
    draft, own = rng.integers(0, 2, length).tolist(), rng.integers(0, 2, length + 1).tolist()
    parents = list(range(-1, length - 1))
    assert verify_tree(draft, parents, own.__getitem__) == verify_chain(draft, own.__getitem__)


def test_repeated_siblings_share_their_subtrees() -> None:
    #      7 ── 1        two siblings hold 7; only the second goes on to 2
    #    ╱
    #  ·─── 7 ── 2 ── 3
    tokens, parents = [7, 7, 1, 2, 3], [-1, -1, 0, 1, 3]
    own = iter([7, 2, 3, 9])
    verdict = verify_tree(tokens, parents, lambda _: next(own))
    assert verdict.tokens == (7, 2, 3, 9)
    assert verdict.path == (1, 3, 4)
