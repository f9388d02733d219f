"""Verification of a draft tree against the target's own tokens (docs/how-it-works.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from foredraft.types import Verdict


def verify_tree(tokens: Sequence[int], parents: Sequence[int], choose: Callable[[int], int]) -> Verdict:
    """Walk from the root into the child that the target chooses itself, as long as there is one.

    `parents` as in `types.Draft`: an index within `tokens`, less than the child's own, or -1 for a child of
    the last committed token. `choose` as in `verify_chain`: one call for each row on the accepted path, in
    order. Siblings may have the same token: their subtrees are walked together, so nothing drafted is lost.
    They share their prefix and so their logits; the verdict's path goes through the one that leads to the
    deepest accepted token.
    """
    children: dict[int, list[int]] = {}
    for index, parent in enumerate(parents):
        children.setdefault(parent, []).append(index)
    committed: list[int] = []
    levels: list[list[int]] = []
    here, row = [-1], 0
    while True:
        own = choose(row)
        committed.append(own)
        below = (child for node in here for child in children.get(node, ()))
        here = [child for child in below if tokens[child] == own]
        if not here:
            return Verdict(tuple(committed), _connect(levels, parents))
        levels.append(here)
        row = here[0] + 1


def _connect(levels: Sequence[Sequence[int]], parents: Sequence[int]) -> tuple[int, ...]:
    """One path through the accepted nodes of each level: up from the deepest, parent by parent."""
    if not levels:
        return ()
    path = [levels[-1][0]]
    while parents[path[-1]] >= 0:
        path.append(parents[path[-1]])
    return tuple(reversed(path))
