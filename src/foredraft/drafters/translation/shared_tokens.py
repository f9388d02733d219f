"""TLI: the draft model's distribution over the tokens that both vocabularies have (Timor et al. 2025,
algorithm 4).

It is a distribution over the target's tokens, so everything works as for a draft model with the target's
vocabulary: the request's processors, the target's noise, the sampled rules.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from foredraft.drafters.translation.twin import Twin
from foredraft.drafters.translation.vocabulary import VocabularyPair
from foredraft.protocols import TokenSampler
from foredraft.types import Logits, Probs


class SharedTokens:
    """Chooses among the shared tokens with `sampler`, which works in the target's vocabulary."""

    def __init__(self, pair: VocabularyPair, vocab_size: int, sampler: TokenSampler) -> None:
        self._pair = pair
        self._sampler = sampler
        self._vocab_size = vocab_size
        self._theirs = np.flatnonzero(pair.to_target >= 0)
        self._ours = pair.to_target[self._theirs]

    def propose(self, logits: Logits, twin: Twin, prefix: Sequence[int]) -> tuple[int, float, Probs | None]:
        """As in protocols.TokenSampler; the token is the draft model's, the distribution the target's."""
        row = np.full(self._vocab_size, -np.inf, np.float32)
        row[self._ours] = logits[self._theirs]
        before = self._pair.to_target[list(prefix)].tolist() if prefix else []
        token, probability, probs = self._sampler.propose(row, twin.request, before)
        return int(self._pair.to_draft[token]), probability, probs
