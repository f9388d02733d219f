"""Drafter for a draft model with another tokenizer: a layer around the drafter in the model's own tokens.

Each request has a twin in the draft model's tokens, for which the inner drafter drafts. New text is tokenised
again, only at its end; a draft is translated either by shared tokens (TLI) or as text that is tokenised
(SLEM). Both use the same history, so each round can use the method that suits the text.

The last token of a text may be the beginning of a longer one. It is drafted like the others: in measurements
it was accepted more often than those before it (docs/drafters.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

from foredraft.drafters.translation.first_tokens import FirstTokens
from foredraft.drafters.translation.shared_tokens import SharedTokens
from foredraft.drafters.translation.spelling import products
from foredraft.drafters.translation.twin import Languages, Twin
from foredraft.errors import RequestError
from foredraft.protocols import Drafter, RequestView, TokenSampler
from foredraft.types import Draft, DraftLimit, Logits, Outcome, Probs

STEPS = 4
"""Maximum draft-model tokens for one target token."""


class TranslatingDrafter:
    """`inner` creates the drafter in the draft model's tokens from a sampler and the maximum tokens of a
    draft. `way` is "auto", "slem" or "tli".
    """

    costly = True

    def __init__(
        self,
        inner: Callable[[TokenSampler, int], Drafter],
        languages: Languages,
        sampler: TokenSampler,
        *,
        vocab_size: int,
        way: str = "auto",
        max_tokens: int = 16,
        min_tokens: int = 0,
    ) -> None:
        self._languages = languages
        self._way = way
        self._max_tokens = max_tokens
        self._min_tokens = min_tokens
        self._twins: dict[int, Twin] = {}
        self._sampler = _TwinSampler(self._twins, languages, vocab_size, sampler)
        self._inner = inner(self._sampler, STEPS * max_tokens)
        self.parameters = int(getattr(self._inner, "parameters", 0))

    @property
    def name(self) -> str:
        return self._inner.name

    def start(self, request: RequestView) -> None:
        """Nothing to do: a request is read with its first draft."""

    def draft(self, requests: Sequence[tuple[RequestView, DraftLimit]]) -> list[Draft | None]:
        asked = [(self._follow(request), limit.within(self._max_tokens)) for request, limit in requests]
        drafts = self._inner.draft([(twin.view, self._steps(twin, limit)) for twin, limit in asked])
        return [
            draft and self._translate(twin, draft, limit.max_tokens)
            for (twin, limit), draft in zip(asked, drafts, strict=True)
        ]

    def observe(self, request: RequestView, outcome: Outcome) -> None:
        twin = self._twins.get(request.id)
        if twin is not None:
            twin.forget(outcome.kept)

    def stop(self, request: RequestView) -> None:
        twin = self._twins.pop(request.id, None)
        if twin is not None:
            self._inner.stop(twin.view)

    def close(self) -> None:
        self._twins.clear()
        self._inner.close()

    def _follow(self, request: RequestView) -> Twin:
        """The request's twin, updated to its text."""
        twin = self._twins.get(request.id)
        if twin is None:
            twin = self._twins[request.id] = Twin.of(request, self._languages, self._way)
        twin.request = request
        kept = twin.follow()
        self._inner.observe(twin.view, Outcome(kept, tuple(twin.view.tokens[kept:])))
        return twin

    def _steps(self, twin: Twin, limit: DraftLimit) -> DraftLimit:
        """The limit in draft-model tokens, by the ratio in the recent text."""
        if twin.shared and twin.pending:
            return limit.within(0)
        if twin.shared or limit.max_tokens < 1:
            return limit
        steps = max(1, round(limit.max_tokens * twin.ratio)) + len(twin.pending)
        return DraftLimit(steps, limit.min_survival, limit.min_probability)

    def _translate(self, twin: Twin, draft: Draft, most: int) -> Draft | None:
        made = self._by_token(draft) if twin.shared else self._by_text(twin, draft)
        if made is None or (len(made) < self._min_tokens and made.probs is None):
            return None
        return made.cut(most)

    def _by_token(self, draft: Draft) -> Draft:
        tokens = self._languages.pair.to_target[list(draft.tokens)].tolist()
        return Draft(tuple(tokens), draft.source, confidence=draft.confidence, probs=draft.probs)

    def _by_text(self, twin: Twin, draft: Draft) -> Draft | None:
        languages = self._languages
        widths = (len(languages.draft.token_bytes(token)) for token in draft.tokens)
        starts = list(accumulate(widths, initial=-len(twin.pending)))[:-1]
        spelled = twin.spell(draft.tokens)
        tokens, confidence = spelled.tokens, products(starts, draft.confidence, spelled.ends)
        last = draft.tokens[-1]
        if last in languages.draft.end_tokens and languages.pair.to_target[last] >= 0:
            tokens = [*tokens, int(languages.pair.to_target[last])]
            confidence.append(draft.confidence[-1])
        return Draft(tuple(tokens), draft.source, confidence=tuple(confidence)) if tokens else None


class _TwinSampler:
    """The inner drafter's protocols.TokenSampler: for a twin it samples with the parameters of the twin's
    request. A token of probability 0 ends the draft.
    """

    def __init__(
        self, twins: dict[int, Twin], languages: Languages, vocab_size: int, sampler: TokenSampler
    ) -> None:
        self._twins = twins
        self._shared = SharedTokens(languages.pair, vocab_size, sampler)
        self._text = FirstTokens(languages.pair, languages.draft, vocab_size, sampler)

    def propose(
        self, logits: Logits, request: RequestView, prefix: Sequence[int]
    ) -> tuple[int, float, Probs | None]:
        twin = self._twins[request.id]
        try:
            if twin.shared:
                return self._shared.propose(logits, twin, prefix)
            return (*self._text.propose(logits, twin, prefix), None)
        except RequestError:  # none of the translatable tokens is allowed
            return 0, 0.0, None
