"""SLEM: any of the draft model's tokens, as text (Timor et al. 2025, algorithm 2).

What the draft model says of its own tokens says something of the target's next token: the one that their
bytes begin with. So its probabilities are added up by that token, the target's sampling chooses one of those,
with the noise that the target will use, and of the draft tokens that begin so the likeliest is drafted. (The
paper draws from the draft model's own tokens; with noise that knows nothing of the target's they agree less.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from foredraft.drafters.translation.twin import Twin
from foredraft.drafters.translation.vocabulary import VocabularyPair
from foredraft.protocols import RequestView, Tokenizer, TokenSampler
from foredraft.types import Logits

HEAD = 16.0
"""Draft tokens count if their logit is at most this far below the best: in a vocabulary of 100,000 all the
others together are likelier than one in a hundred only where the draft model knows next to nothing."""


class FirstTokens:
    """Chooses any token of the draft model's, with `sampler`, which knows the target's vocabulary only."""

    def __init__(
        self, pair: VocabularyPair, draft: Tokenizer, vocab_size: int, sampler: TokenSampler
    ) -> None:
        self._pair = pair
        self._draft = draft
        self._vocab_size = vocab_size
        self._sampler = sampler

    def propose(self, logits: Logits, twin: Twin, prefix: Sequence[int]) -> tuple[int, float]:
        """The draft model's token after its text and `prefix`, and its probability; 0 where there is none."""
        head = np.flatnonzero(logits >= logits.max() - HEAD)
        rest = twin.unfinished(prefix)
        if rest:
            return self._finish(logits, head, rest)
        first = self._pair.first[head]
        return self._choose(logits, head[first >= 0], first[first >= 0], twin, prefix)

    def _finish(self, logits: Logits, head: npt.NDArray[np.int64], rest: bytes) -> tuple[int, float]:
        """The likeliest token that agrees with bytes which the text has already."""
        fits = [token for token in head.tolist() if _agree(self._draft.token_bytes(token), rest)]
        if not fits:
            return 0, 0.0
        weights = np.exp((logits[fits] - logits[fits].max()).astype(np.float64))
        return fits[int(weights.argmax())], float(1.0 / weights.sum())

    def _choose(
        self,
        logits: Logits,
        tokens: npt.NDArray[np.int64],
        first: npt.NDArray[np.int64],
        twin: Twin,
        prefix: Sequence[int],
    ) -> tuple[int, float]:
        """One of `tokens`, the target's tokens for whose first bytes are `first`."""
        if not tokens.size:
            return 0, 0.0
        weights = np.exp((logits[tokens] - logits[tokens].max()).astype(np.float64))
        mass = np.bincount(first, weights, self._vocab_size)
        some = np.flatnonzero(mass)
        row = np.full(self._vocab_size, -np.inf, np.float32)
        row[some] = np.log(mass[some])
        own, probability, _ = self._sampler.propose(row, chooser(twin), twin.spell(prefix).tokens)
        at = int(np.argmax(np.where(first == own, weights, -1.0)))
        return int(tokens[at]), probability * float(weights[at] / max(mass[own], weights[at]))


def _agree(piece: bytes, other: bytes) -> bool:
    """Whether one begins with the other."""
    return bool(piece) and (piece.startswith(other) or other.startswith(piece))


def chooser(twin: Twin) -> RequestView:
    """The request whose sampling chooses. A draft of text has no distribution that the sampled rules could
    read: for them the most likely text is the best.
    """
    request = twin.request
    if request.params.verify == "match":
        return request
    if twin.greedy is None or twin.greedy[0] is not request.params:
        params = replace(request.params, temperature=0.0, verify="match")
        twin.greedy = request.params, replace(request, params=params)
    view = twin.greedy[1]
    view.prompt_length = request.prompt_length
    return view
