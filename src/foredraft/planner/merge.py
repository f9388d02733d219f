"""Drafts of several sources as one tree: common beginnings are shared, and where they differ both are tried.

A node's survival is the probability that the path to it is accepted. A drafter's own estimates are calibrated
(`calibration`), but what another says of the same place changes them: a token that two propose is right more
often, and of different tokens at most one is. So where more than one source speaks, tokens are ranked by
their estimates, and how often each is right *given that those ranked above it are wrong* is learnt from the
text, verified or not. Chances of siblings can then not add up to more than 1.

Survival falls along every path, so the best tree of n nodes is the n nodes of highest survival, and parents
come before children in that order: every beginning of `Tree.nodes` is the best tree of its size (as in
SpecInfer, Miao et al. 2024, arXiv 2305.09781, and Sequoia, Chen et al. 2024, arXiv 2402.12374, which find the
best shape for one source's average rates).
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass

from foredraft.planner.tables.beta import NOTHING, Counts
from foredraft.planner.tables.reading import NEGLIGIBLE
from foredraft.protocols import RequestView
from foredraft.types import Draft

DISPUTED = 0.5
"""Before anything was seen: share of its own estimate that is left of a token when the source ranked above
it is wrong."""

_EDGES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98)
_RANKS = 3
_ROOT = -1

Key = tuple[str, bool, int, int]
"""The source, whether another agrees, the rank among siblings, and the bucket of the estimate."""


@dataclass(frozen=True, slots=True)
class Tree:
    """A merged tree. `survival` falls from node to node, and parents come before children; `proposed[i]` has
    a bit for each draft that node i is in, `leads[i]` is the draft that was surest of it.
    """

    tokens: Sequence[int]
    parents: Sequence[int]
    survival: Sequence[float]
    proposed: Sequence[int]
    leads: Sequence[int]
    sources: Sequence[str]

    def __len__(self) -> int:
        return len(self.tokens)

    def cut(self, length: int) -> Draft:
        """The best tree of `length` nodes as a draft, or as a chain where that is what it is. Its source is
        the one that proposed all of it, or else those that were surest of some of it, joined by "+".
        """
        parents = tuple(self.parents[:length])
        everywhere = -1
        for mask in self.proposed[:length]:
            everywhere &= mask
        if everywhere:
            source = self.sources[(everywhere & -everywhere).bit_length() - 1]
        else:
            source = "+".join(sorted({self.sources[lead] for lead in self.leads[:length]}))
        chain = all(parent == i - 1 for i, parent in enumerate(parents))
        return Draft(tuple(self.tokens[:length]), source, None if chain else parents)

    def paying(self, cost: Sequence[float]) -> list[float]:
        """For sizes from 1 on, the chance that the best tree of that size commits more tokens than it costs:
        `cost[i]` is what i + 1 nodes cost beyond a plain round, in turns of one request.
        """
        depths: list[int] = []
        reached: list[float] = []  # by depth: the chance that some node so deep is accepted
        chances: list[float] = []
        for parent, survival, rounds in zip(self.parents, self.survival, cost, strict=False):
            depth = 0 if parent < 0 else depths[parent] + 1
            depths.append(depth)
            if depth == len(reached):
                reached.append(0.0)
            reached[depth] += survival
            needed = int(rounds)
            chances.append(min(1.0, reached[needed]) if needed < len(reached) else 0.0)
        return chances


def may_merge(request: RequestView, drafts: Sequence[Draft]) -> bool:
    """Whether there is anything to merge, and the request's rule accepts what the target chooses itself."""
    several = len(drafts) > 1 or any(draft.parents is not None for draft in drafts)
    return several and (request.params.verify == "match" or request.params.temperature <= 0)


class Merger:
    """Merges drafts, and learns how to weigh what their sources say."""

    def __init__(self) -> None:
        self._cells: dict[Key, Counts] = {}
        self._shadow: dict[int, _Trie] = {}

    def merge(
        self,
        request: int,
        drafts: Sequence[Draft],
        survivals: Sequence[Sequence[float]],
        caution: float = 0.0,
    ) -> Tree:
        """The tree of all that is in the drafts and not hopeless. `survivals` are their estimates
        (`Survival.estimates`), `caution` standard deviations below the mean, as those of siblings will be.

        It has no more nodes than the longest of the drafts has tokens: there may not be room for more.
        """
        trie = _Trie()
        for number, (draft, survival) in enumerate(zip(drafts, survivals, strict=True)):
            trie.insert(number, draft, survival)
        sources = [draft.source for draft in drafts]
        survival = self._survival(trie, sources, caution)
        self._shadow[request] = trie
        order = sorted(range(len(survival)), key=survival.__getitem__, reverse=True)
        order = order[: max(map(len, drafts), default=0)]
        while order and survival[order[-1]] < NEGLIGIBLE:
            order.pop()
        place = {node: i for i, node in enumerate(order)}
        place[_ROOT] = _ROOT
        return Tree(
            [trie.tokens[node] for node in order],
            [place[trie.parents[node]] for node in order],
            [survival[node] for node in order],
            [trie.proposed[node] for node in order],
            [trie.leads[node] for node in order],
            sources,
        )

    def _survival(self, trie: _Trie, sources: Sequence[str], caution: float) -> list[float]:
        """The survival of each node."""
        survival = [0.0] * len(trie.tokens)
        chances, proposed = trie.chances, trie.proposed
        for parent, children in enumerate(trie.children, _ROOT):
            if not children:
                continue
            above = 1.0 if parent < 0 else survival[parent]
            if len(children) == 1:
                [only] = children
                if not proposed[only] & (proposed[only] - 1):  # one source speaks, and is taken at its word
                    survival[only] = above * chances[only]
                    continue
            else:
                children.sort(key=chances.__getitem__, reverse=True)
            ranked = self._ranked(trie, children, sources, caution)
            for child, chance in zip(children, ranked, strict=True):
                survival[child] = above * chance
        return survival

    def _ranked(
        self, trie: _Trie, children: Sequence[int], sources: Sequence[str], caution: float
    ) -> list[float]:
        """The chances of siblings, best first: each one's is a share of what those before it leave."""
        speaking = 0
        for child in children:
            speaking |= trie.proposed[child]
        found: list[float] = []
        left = 1.0
        for rank, child in enumerate(children):
            lead, mask, chance = trie.leads[child], trie.proposed[child], trie.chances[child]
            rest = 1.0 - sum(
                trie.chances[other] for other in children[:rank] if trie.proposed[other] >> lead & 1
            )
            share = min(1.0, chance / rest) if rest > 0.0 else 0.0
            if speaking != 1 << lead:  # or else its source alone speaks here: calibrated as it is
                agreed = bool(mask & (mask - 1))
                key = (sources[lead], agreed, min(rank, _RANKS), bisect(_EDGES, share))
                trie.keys[child] = key
                prior = share * DISPUTED if rank and not agreed else share
                share = self._cells.get(key, NOTHING).chance(prior, caution)
            found.append(left * share)
            left *= 1.0 - share
        return found

    def score(self, request: int, tokens: Sequence[int]) -> None:
        """Learn from what the target emitted: at every node that it reached, the children in their ranking
        up to the one that was right.
        """
        tree = self._shadow.pop(request, None)
        if tree is None:
            return
        node = _ROOT
        for token in tokens:
            tried, node = tree.children[node + 1], _ROOT
            for child in tried:
                right = tree.tokens[child] == token
                key = tree.keys.get(child)
                if key is not None:
                    self._cells.setdefault(key, Counts()).add(right)
                if right:
                    node = child
                    break
            if node == _ROOT:
                return

    def forget(self, request: int) -> None:
        """The request is over."""
        self._shadow.pop(request, None)


class _Trie:
    """Drafts with their common beginnings shared. Node i's parent comes before it; `children[0]` are those of
    the root, `children[i + 1]` those of node i. `chances` are given that the parent was accepted; `keys`, of
    the nodes whose chance was looked up.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.chances: list[float] = []
        self.leads: list[int] = []
        self.proposed: list[int] = []
        self.children: list[list[int]] = [[]]
        self.keys: dict[int, Key] = {}

    def insert(self, number: int, draft: Draft, survival: Sequence[float]) -> None:
        """Add draft `number`, as far as it may be accepted; `survival[i]` belongs to its token i."""
        if draft.parents is None:
            self._insert_chain(number, draft.tokens, survival)
            return
        nodes: list[int | None] = []
        for token, parent, reached in zip(draft.tokens, draft.parents, survival, strict=True):
            above = _ROOT if parent < 0 else nodes[parent]
            if above is None or reached < NEGLIGIBLE:
                nodes.append(None)
            else:
                before = 1.0 if parent < 0 else survival[parent]
                nodes.append(self._node(above, token, number, reached / before))

    def _insert_chain(self, number: int, tokens: Sequence[int], survival: Sequence[float]) -> None:
        node, before, length = _ROOT, 1.0, 0
        for token, reached in zip(tokens, survival, strict=True):
            if reached < NEGLIGIBLE or not self.children[node + 1]:
                break
            node = self._node(node, token, number, reached / before)
            before, length = reached, length + 1
        while length < len(tokens) and survival[length] >= NEGLIGIBLE:  # from here on nothing is shared
            reached, first = survival[length], len(self.tokens)
            self.children[node + 1].append(first)
            self.children.append([])
            self.tokens.append(tokens[length])
            self.parents.append(node)
            self.chances.append(reached / before)
            node, before, length = first, reached, length + 1
        self.leads += [number] * (len(self.tokens) - len(self.leads))
        self.proposed += [1 << number] * (len(self.tokens) - len(self.proposed))

    def _node(self, parent: int, token: int, number: int, chance: float) -> int:
        for child in self.children[parent + 1]:
            if self.tokens[child] == token:
                self.proposed[child] |= 1 << number
                if chance > self.chances[child]:
                    self.chances[child], self.leads[child] = chance, number
                return child
        node = len(self.tokens)
        self.tokens.append(token)
        self.parents.append(parent)
        self.chances.append(chance)
        self.leads.append(number)
        self.proposed.append(1 << number)
        self.children.append([])
        self.children[parent + 1].append(node)
        return node
