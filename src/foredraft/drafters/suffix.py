"""`suffix`: what followed the longest earlier occurrence of the text's end, here and in past outputs.

Sources: prompt lookup (Saxena 2023) for the request's own history, SuffixDecoding (Oliaro et al. 2024, arXiv
2411.04975) for past outputs and for continuations weighted by frequency. Instead of a suffix tree with counts
there is an index of k-grams (suffix_index.py): the newest occurrences with the longest matches are looked up,
measured exactly, and vote on the continuation.

Memory: at most 80 bytes for each token of a request's history, and 32 to 50 bytes for each token of past
outputs. With the default limit of 1,000,000 tokens that is at most 50 MB for a scope, and for each of up to
LOADED_SCOPES idle scopes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import Any

from foredraft.config import checked_by, read_options
from foredraft.drafters.base import HistoryDrafter
from foredraft.drafters.match_length import RepeatedEnd
from foredraft.drafters.past_outputs import PastOutputs
from foredraft.drafters.resync import CONFIDENCE as RESYNC
from foredraft.drafters.resync import STEADY, Copying, confidence_of
from foredraft.drafters.store_thread import StoreThread
from foredraft.drafters.suffix_index import SuffixIndex
from foredraft.drafters.suffix_store import SuffixStore
from foredraft.drafters.suffix_vote import (
    LONGEST_BRANCH,
    MIN_BRANCH,
    Branch,
    branches,
    grow,
    longest_matches,
    vote,
)
from foredraft.errors import SpeculationStringError
from foredraft.protocols import Drafter, DrafterContext, RequestView
from foredraft.types import MAX_DRAFT_TOKENS, Draft, DraftLimit, Outcome

NAME = "suffix"
SHORTEST_MATCH = 1
CANDIDATES = 16
MIN_SURVIVAL = 0.3
"""Minimum survival of a draft by a named drafter, which is verified completely: drafting ends below it.
`auto` requests longer drafts (engine/speculation.py) and cuts them by the cost of verification.
"""

OWN_LEVELS = (1, 2, 4, 8, 16)
BRANCHES = 4
"""Continuations beside the likeliest one, if the target verifies trees."""
CONTENT = 16
"""Past outputs are not searched if the match in the request's own text is at least this long."""
PROMPT_TAIL = 32
"""Prompt tokens stored before an output, so that the same question finds it again."""
LOADED_SCOPES = 4
"""Idle scopes whose past outputs stay in memory."""
STORE_TOKENS = 1_000_000
MOST_STORED = 1 << 24


@dataclass(slots=True)
class _State:
    """`observed`: tokens of the history that the drafter was told of. `index` covers them, and may be ahead
    of them by what `match_length` has read. `end` follows the index.
    """

    index: SuffixIndex
    end: RepeatedEnd
    observed: int
    prompt_length: int
    past: PastOutputs | None
    copying: Copying | None = None

    def remember(self) -> None:
        """Add the output since the prompt, if any, to the scope's past outputs."""
        if self.past is not None and self.observed > self.prompt_length:
            start = max(0, self.prompt_length - PROMPT_TAIL)
            self.past.add(self.index.text[start : self.observed].tolist())


class SuffixDrafter(HistoryDrafter[_State]):
    """Drafts a chain, or with `branches` a tree in which up to that many other continuations leave the
    likeliest one; `confidence[i]` estimates that token i is right given its ancestors.

    Features: `match_length`; `count`, the occurrences that voted; `agree`, the share of their weight for the
    first token; `from_store`, 1 if the continuation comes from a past output, and `from_prompt`, 1 if it
    comes from the prompt. `open_store` opens the store of a scope's past outputs; None: past outputs are not
    used. They are loaded on the thread `disk`; until then drafts come from the request's own text. A draft
    has at most `longest` tokens (≤ `MAX_DRAFT_TOKENS`).
    """

    name = NAME

    def __init__(
        self,
        *,
        longest: int = MAX_DRAFT_TOKENS,
        shortest_match: int = SHORTEST_MATCH,
        candidates: int = CANDIDATES,
        min_survival: float = 0.005,
        open_store: Callable[[str], SuffixStore] | None = None,
        branches: int = 0,
    ) -> None:
        super().__init__()
        self._branches = branches
        self._longest = longest
        self._shortest_match = shortest_match
        self._candidates = candidates
        self._min_survival = min_survival
        self._open_store = open_store
        self._pasts: dict[str, PastOutputs] = {}  # by scope, the most recently used last
        self.disk = StoreThread()

    def build(self, request: RequestView) -> _State:
        index, size = SuffixIndex(OWN_LEVELS, request.tokens), len(request.tokens)
        return _State(index, RepeatedEnd(index), size, request.prompt_length, self._past(request))

    def extend(self, state: _State, request: RequestView, outcome: Outcome) -> None:  # noqa: ARG002
        tokens, indexed = request.tokens, len(state.index)
        if state.index.text[state.observed :].tolist() != tokens[state.observed : indexed]:
            # Read before it was told, and replaced since.
            state.index = SuffixIndex(OWN_LEVELS, tokens)
            state.end = RepeatedEnd(state.index)
        else:
            state.index.extend(tokens[indexed:])
        state.observed = len(tokens)

    def size(self, state: _State) -> int:
        return state.observed

    def match_length(self, request: RequestView) -> int:
        """The tokens at the text's end that also occur earlier in it; also of a text that the drafter was not
        told of yet, but 0 if a part of what it was told of is gone.
        """
        state, tokens = self._states[request.id], request.tokens
        indexed = len(state.index)
        if indexed > len(tokens) or (indexed and state.index.text[-1] != tokens[indexed - 1]):
            return 0
        if indexed < len(tokens):
            state.index.extend(tokens[indexed:])
        return state.end.length()

    def observe(self, request: RequestView, outcome: Outcome) -> None:
        state = self._states[request.id]
        if request.prompt_length != state.prompt_length:  # the conversation's next turn has begun
            state.remember()
            state.prompt_length = request.prompt_length
        super().observe(request, outcome)

    def stop(self, request: RequestView) -> None:
        state = self._states.get(request.id)
        if state is not None:
            state.remember()
        super().stop(request)
        if state is not None and state.past is not None and state.past.store.full:
            self.disk.write(state.past.store)
        self._unload_idle()

    def close(self) -> None:
        for scope in list(self._pasts):
            self._unload(scope)
        self.disk.close()
        super().close()

    def propose(self, state: _State, request: RequestView, limit: DraftLimit) -> Draft | None:
        text, shortest, count, probability = (
            state.index,
            self._shortest_match,
            self._candidates,
            limit.min_probability,
        )
        found = []
        own = longest_matches(text, text, shortest, count, probability)
        if own is not None:
            found.append(own)
        remembered = state.past.index if state.past is not None else None
        if remembered is not None and (own is None or max(own.lengths) < CONTENT):
            past = longest_matches(remembered, text, shortest, count, probability)
            if past is not None:
                found.append(past)
        most, least = min(limit.max_tokens, self._longest), max(self._min_survival, limit.min_survival)
        chosen = vote(found, most, least) if found else None
        if chosen is None or (not self._branches and chosen.confidence[0] < RESYNC[0]):
            changed = self._after_a_change(state, request, limit)
            if changed is not None:
                return changed
        if chosen is None:
            return None
        if chosen.match_length >= STEADY and not chosen.past:
            state.copying = Copying(len(request.tokens), chosen.tokens)
        features = {
            "match_length": float(chosen.match_length),
            "count": float(chosen.count),
            "agree": chosen.agree,
            "from_store": float(chosen.past),
            "from_prompt": float(not chosen.past and chosen.place < state.prompt_length),
        }
        others = branches(chosen, self._branches, least) if self._branches else []
        if self._branches and chosen.confidence[0] < RESYNC[0]:
            others += self._changed(state, request)
        if others:
            least = max(least, MIN_BRANCH)
            tree = grow(chosen.tokens, chosen.confidence, others, limit=most, min_survival=least)
            forks = tree.parents != tuple(range(-1, len(tree.tokens) - 1))
            return Draft(tree.tokens, self.name, tree.parents if forks else None, tree.confidence, features)
        return Draft(tuple(chosen.tokens), self.name, None, tuple(chosen.confidence), features)

    @staticmethod
    def _changed(state: _State, request: RequestView) -> list[Branch]:
        """The rest of the copied text as a branch, if the last token replaced one of it."""
        if state.copying is None:
            return []
        tokens = state.copying.after_a_change(request.tokens)[:LONGEST_BRANCH]
        return [Branch(0, tokens, confidence_of(len(tokens)))] if tokens else []

    def _after_a_change(self, state: _State, request: RequestView, limit: DraftLimit) -> Draft | None:
        if state.copying is None or limit.min_probability > RESYNC[0]:
            return None
        tokens = state.copying.after_a_change(request.tokens)[: min(limit.max_tokens, self._longest)]
        estimates = confidence_of(len(tokens))
        keep = sum(survival >= self._min_survival for survival in accumulate(estimates, mul))
        if not tokens or not keep:
            return None
        features = {"match_length": 0.0, "count": 1.0, "agree": 1.0, "from_store": 0.0}
        return Draft(tuple(tokens[:keep]), self.name, confidence=estimates[:keep], features=features)

    def _past(self, request: RequestView) -> PastOutputs | None:
        if self._open_store is None or not request.kept:
            return None
        scope = request.scope
        past = self._pasts.pop(scope, None) or PastOutputs(self._open_store(scope), self.disk)
        self._pasts[scope] = past
        return past

    def _unload_idle(self) -> None:
        busy = {id(state.past) for state in self._states.values()}
        idle = [scope for scope, past in self._pasts.items() if id(past) not in busy]
        for scope in idle[: max(0, len(self._pasts) - LOADED_SCOPES)]:
            self._unload(scope)

    def _unload(self, scope: str) -> None:
        past = self._pasts.pop(scope)
        past.abandon()
        self.disk.write(past.store)


def _read(options: Mapping[str, str]) -> dict[str, Any]:
    values = read_options(
        NAME,
        options,
        {
            "max": MAX_DRAFT_TOKENS,
            "min": SHORTEST_MATCH,
            "min-p": MIN_SURVIVAL,
            "candidates": CANDIDATES,
            "store_tokens": STORE_TOKENS,
        },
    )
    for key, most in (("max", MAX_DRAFT_TOKENS), ("min", MAX_DRAFT_TOKENS), ("candidates", 1024)):
        if not 1 <= values[key] <= most:
            raise SpeculationStringError(f"{NAME}: {key}={values[key]} is not between 1 and {most}.")
    if not 0.0 <= values["min-p"] <= 1.0:
        raise SpeculationStringError(f"{NAME}: min-p={values['min-p']} must be between 0 and 1.")
    if values["store_tokens"] > MOST_STORED:
        raise SpeculationStringError(f"{NAME}: store_tokens={values['store_tokens']} exceeds {MOST_STORED}.")
    return values


@checked_by(_read)
def create(context: DrafterContext, options: Mapping[str, str]) -> Drafter:
    """Create the drafter of the stage `suffix`.

    Options: `max`, the maximum tokens of a draft (1 to 63); `min`, the minimum match to draft from;
    `candidates`, the number of occurrences to look at; `min-p`, the survival below which a draft ends;
    `store_tokens`, the maximum tokens of past outputs for each scope, 0 for none. Raises
    SpeculationStringError.
    """
    values = _read(options)
    folder, target, bound = context.store, context.target, values["store_tokens"]

    def open_store(scope: str) -> SuffixStore:
        assert folder is not None
        return SuffixStore(
            folder,
            vocab_hash=target.vocab_hash,
            vocab_size=target.vocab_size,
            scope=scope,
            max_tokens=bound,
        )

    return SuffixDrafter(
        longest=values["max"],
        shortest_match=values["min"],
        candidates=values["candidates"],
        min_survival=values["min-p"],
        open_store=open_store if folder is not None and bound else None,
        branches=BRANCHES if context.capabilities.trees else 0,
    )
