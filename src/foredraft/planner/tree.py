"""Candidates of several drafters as one tree: common beginnings are shared, and where they differ both are
tried.

The survival of a node is the probability that the path to it is accepted. Drafters' own probabilities
(`acceptance`) are changed by what others propose at the same place: a token that two drafters propose is
right more often, and of different tokens at most one is. So siblings are ranked by probability, and how often
each is right *given that those ranked above it are wrong* is learnt from the text, verified or not. The
probabilities of siblings then cannot add up to more than 1.

Survival falls along every path. So the best tree of n nodes is the n nodes of highest survival, parents come
before children in that order, and every beginning of `Tree.tokens` is the best tree of its size (SpecInfer,
Miao et al. 2024, arXiv 2305.09781; Sequoia, Chen et al. 2024, arXiv 2402.12374).
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass

from foredraft.planner.acceptance import FORGET_AT, NEGLIGIBLE, PRIOR_WEIGHT
from foredraft.protocols import RequestView
from foredraft.types import Draft

DISPUTED = 0.5
"""Share of its own probability that a token keeps, before anything was learnt, when the sibling ranked above
it is wrong."""

_EDGES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98)
_RANKS = 3
_ROOT = -1

Key = tuple[str, bool, int, int]
"""Source, whether another source agrees, rank among siblings, bucket of the probability."""


@dataclass(frozen=True, slots=True)
class Tree:
    """A merged tree. `survival` falls from node to node, and parents come before children; bit k of
    `proposed[i]` says that draft k has node i, `leads[i]` is the draft with the highest probability for it.
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
        """The best tree of `length` nodes, as a chain where it is one. Its source is the drafter that
        proposed all of it, or else those that lead some of its nodes, joined by "+".
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

    def paying(self, extra: Sequence[float]) -> list[float]:
        """As `decide.chain_paying`: for 1, 2, … nodes the probability that more are accepted than they cost
        rounds.
        """
        depths: list[int] = []
        reached: list[float] = []  # by depth: the probability that a node of that depth is accepted
        paying: list[float] = []
        for i, (parent, survival) in enumerate(zip(self.parents, self.survival, strict=True)):
            depth = 0 if parent < 0 else depths[parent] + 1
            depths.append(depth)
            if depth == len(reached):
                reached.append(0.0)
            reached[depth] += survival
            needed = int(extra[i + 1])
            paying.append(min(1.0, reached[needed]) if needed < len(reached) else 0.0)
        return paying


def may_merge(request: RequestView, drafts: Sequence[Draft]) -> bool:
    """Whether there is anything to merge, and the request's rule accepts what the target samples itself."""
    several = len(drafts) > 1 or any(draft.parents is not None for draft in drafts)
    return several and (request.params.verify == "match" or request.params.temperature <= 0)


class TreeMerger:
    """Merges drafts, and learns how often a token is right where several are proposed."""

    def __init__(self) -> None:
        self._counts: dict[Key, list[float]] = {}
        self._tries: dict[int, _Trie] = {}

    def merge(
        self,
        request: int,
        drafts: Sequence[Draft],
        survivals: Sequence[Sequence[float]],
        deviations: float = 0.0,
    ) -> Tree:
        """The tree of all draft tokens that are not negligible, with no more nodes than the longest draft has
        tokens. `survivals` are those of the drafts, `deviations` the standard deviations below the mean.
        """
        trie = _Trie()
        for number, (draft, survival) in enumerate(zip(drafts, survivals, strict=True)):
            trie.insert(number, draft, survival)
        sources = [draft.source for draft in drafts]
        survival = self._survival(trie, sources, deviations)
        self._tries[request] = trie
        order = sorted(range(len(survival)), key=survival.__getitem__, reverse=True)
        order = [i for i in order[: max(map(len, drafts), default=0)] if survival[i] >= NEGLIGIBLE]
        place = {node: i for i, node in enumerate(order)} | {_ROOT: _ROOT}
        return Tree(
            [trie.tokens[node] for node in order],
            [place[trie.parents[node]] for node in order],
            [survival[node] for node in order],
            [trie.proposed[node] for node in order],
            [trie.leads[node] for node in order],
            sources,
        )

    def _survival(self, trie: _Trie, sources: Sequence[str], deviations: float) -> list[float]:
        survival = [0.0] * len(trie.tokens)
        for parent, children in enumerate(trie.children, _ROOT):
            above = 1.0 if parent < 0 else survival[parent]
            children.sort(key=trie.probabilities.__getitem__, reverse=True)
            ranked = self._ranked(trie, children, sources, deviations)
            for child, probability in zip(children, ranked, strict=True):
                survival[child] = above * probability
        return survival

    def _ranked(
        self, trie: _Trie, children: Sequence[int], sources: Sequence[str], deviations: float
    ) -> list[float]:
        """The probabilities of siblings, best first: each is a share of what those before it leave."""
        speaking = 0
        for child in children:
            speaking |= trie.proposed[child]
        found: list[float] = []
        left = 1.0
        for rank, child in enumerate(children):
            lead, mask, probability = trie.leads[child], trie.proposed[child], trie.probabilities[child]
            taken = [trie.probabilities[it] for it in children[:rank] if trie.proposed[it] >> lead & 1]
            rest = 1.0 - sum(taken)
            share = min(1.0, probability / rest) if rest > 0.0 else 0.0
            if speaking != 1 << lead:  # a source that stands alone here is calibrated as it is
                agreed = bool(mask & (mask - 1))
                key = (sources[lead], agreed, min(rank, _RANKS), bisect(_EDGES, share))
                trie.keys[child] = key
                share = self._learnt(key, share * DISPUTED if rank and not agreed else share, deviations)
            found.append(left * share)
            left *= 1.0 - share
        return found

    def _learnt(self, key: Key, prior: float, deviations: float) -> float:
        right, wrong = self._counts.get(key, (0.0, 0.0))
        total = right + wrong + PRIOR_WEIGHT
        mean = (right + PRIOR_WEIGHT * prior) / total
        return float(max(0.0, mean - deviations * (mean * (1.0 - mean) / (total + 1.0)) ** 0.5))

    def score(self, request: int, tokens: Sequence[int]) -> None:
        """Learn from the tokens that the target wrote: at every node they reach, the children up to the right
        one.
        """
        trie, node = self._tries.pop(request, None), _ROOT
        for token in tokens if trie is not None else ():
            assert trie is not None
            children, node = trie.children[node + 1], _ROOT
            for child in children:
                right = trie.tokens[child] == token
                if child in trie.keys:
                    self._count(trie.keys[child], right)
                if right:
                    node = child
                    break
            if node == _ROOT:
                return

    def _count(self, key: Key, right: bool) -> None:
        counts = self._counts.setdefault(key, [0.0, 0.0])
        counts[0 if right else 1] += 1.0
        if sum(counts) > FORGET_AT:
            counts[:] = [it / 2.0 for it in counts]

    def forget(self, request: int) -> None:
        """The request is over."""
        self._tries.pop(request, None)


class _Trie:
    """Drafts with their common beginnings shared. The parent of node i comes before it; `children[0]` are
    those of the root, `children[i + 1]` those of node i. `probabilities` are given that the parent is
    accepted; `keys`: of nodes whose probability was looked up.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.probabilities: list[float] = []
        self.leads: list[int] = []
        self.proposed: list[int] = []
        self.children: list[list[int]] = [[]]
        self.keys: dict[int, Key] = {}

    def insert(self, number: int, draft: Draft, survival: Sequence[float]) -> None:
        """Add draft `number` as far as it is not negligible; `survival[i]` belongs to its token i."""
        nodes: list[int | None] = []
        parents = draft.parents if draft.parents is not None else range(-1, len(draft) - 1)
        for token, parent, reached in zip(draft.tokens, parents, survival, strict=True):
            above = _ROOT if parent < 0 else nodes[parent]
            if above is None or reached < NEGLIGIBLE:
                nodes.append(None)
                continue
            before = 1.0 if parent < 0 else survival[parent]
            nodes.append(self._node(above, token, number, reached / before))

    def _node(self, parent: int, token: int, number: int, probability: float) -> int:
        for child in self.children[parent + 1]:
            if self.tokens[child] == token:
                self.proposed[child] |= 1 << number
                if probability > self.probabilities[child]:
                    self.probabilities[child], self.leads[child] = probability, number
                return child
        node = len(self.tokens)
        self.tokens.append(token)
        self.parents.append(parent)
        self.probabilities.append(probability)
        self.leads.append(number)
        self.proposed.append(1 << number)
        self.children.append([])
        self.children[parent + 1].append(node)
        return node
