"""Several continuations of one place in a text as a tree, for targets that verify trees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Branch:
    """Another continuation: where it leaves the likeliest one, after so many tokens of that, and how it goes
    on; `confidence[i]` is the estimate for token i given those before it.
    """

    after: int
    tokens: Sequence[int]
    confidence: Sequence[float]


@dataclass(frozen=True, slots=True)
class Grown:
    """A tree as `types.Draft` has it: parents come before children, -1 is the last committed token."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    confidence: tuple[float, ...]


def grow(
    tokens: Sequence[int],
    confidence: Sequence[float],
    branches: Sequence[Branch],
    *,
    limit: int,
    min_survival: float,
) -> Grown:
    """The chain and its branches as one tree of at most `limit` tokens: those that are likeliest to be
    reached and right, in that order, as long as that is at least `min_survival`; one token in any case.
    """
    nodes: list[tuple[int, int, float, float]] = []  # token, parent, confidence, survival
    children: dict[tuple[int, int], int] = {}

    def add(parent: int, token: int, chance: float) -> int:
        known = children.get((parent, token))
        if known is not None:
            return known
        survival = chance if parent < 0 else nodes[parent][3] * chance
        nodes.append((token, parent, chance, survival))
        children[parent, token] = len(nodes) - 1
        return len(nodes) - 1

    node = -1
    main = [node := add(node, token, chance) for token, chance in zip(tokens, confidence, strict=True)]
    for branch in branches:
        node = main[branch.after - 1] if branch.after else -1
        for token, chance in zip(branch.tokens, branch.confidence, strict=True):
            node = add(node, token, chance)
    order = sorted(range(len(nodes)), key=lambda i: nodes[i][3], reverse=True)[:limit]
    order = [i for rank, i in enumerate(order) if not rank or nodes[i][3] >= min_survival]
    place = {i: at for at, i in enumerate(order)} | {-1: -1}
    return Grown(
        tuple(nodes[i][0] for i in order),
        tuple(place[nodes[i][1]] for i in order),
        tuple(nodes[i][2] for i in order),
    )
