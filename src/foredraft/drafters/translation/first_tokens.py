"""SLEM: any token of the draft model, as text (Timor et al. 2025, algorithm 2).

The draft model's probabilities for its own tokens imply probabilities for the target's next token: the one
that their bytes begin with. They are summed by that token, the target's sampling chooses one of these with
the noise that the target will use, and the likeliest draft token that begins with it is drafted. (The paper
draws from the draft model's own tokens; with noise that is independent of the target's they agree less
often.)
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
"""Draft tokens count if their logit is at most this far below the best: in a vocabulary of 100,000 all others
together exceed a probability of 1 % only if the draft model is very uncertain.
"""


class FirstTokens:
    """Chooses among all tokens of the draft model with `sampler`, which works in the target's vocabulary."""

    def __init__(
        self, pair: VocabularyPair, draft: Tokenizer, vocab_size: int, sampler: TokenSampler
    ) -> None:
        self._pair = pair
        self._draft = draft
        self._vocab_size = vocab_size
        self._sampler = sampler

    def propose(self, logits: Logits, twin: Twin, prefix: Sequence[int]) -> tuple[int, float]:
        """The draft model's token after its text and `prefix`, and its probability; 0 if there is none."""
        head = np.flatnonzero(logits >= logits.max() - HEAD)
        rest = twin.unfinished(prefix)
        if rest:
            return self._finish(logits, head, rest)
        first = self._pair.first[head]
        return self._choose(logits, head[first >= 0], first[first >= 0], twin, prefix)

    def _finish(self, logits: Logits, head: npt.NDArray[np.int64], rest: bytes) -> tuple[int, float]:
        """The likeliest token that agrees with bytes that are already in the text."""
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
        """Choose one of `tokens`, whose first bytes are those of the target's tokens `first`."""
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
    """Whether one starts with the other."""
    return bool(piece) and (piece.startswith(other) or other.startswith(piece))


def chooser(twin: Twin) -> RequestView:
    """The request whose sampling is used. A draft of text has no distribution that the sampled rules could
    use; for them the likeliest text is the best.
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
