"""Driving one drafter by hand: a request that grows, and what is drafted for it."""

from __future__ import annotations

import random
from collections.abc import Sequence

from foredraft.drafters.suffix_index import SEPARATOR, SuffixIndex
from foredraft.drafters.suffix_vote import Matches
from foredraft.protocols import Drafter, RequestView
from foredraft.testing import ScriptedDrafter
from foredraft.types import Draft, DraftLimit, Outcome


def start(drafter: Drafter, tokens: list[int], *, number: int = 1, scope: str = "") -> RequestView:
    request = RequestView(number, list(tokens), prompt_length=len(tokens), scope=scope)
    drafter.start(request)
    return request


def commit(drafter: Drafter, request: RequestView, tokens: list[int], *, kept: int | None = None) -> None:
    kept = len(request.tokens) if kept is None else kept
    request.tokens[kept:] = tokens
    drafter.observe(request, Outcome(kept, tuple(tokens)))


def draft(drafter: Drafter, request: RequestView, limit: int = 63) -> Draft | None:
    return drafter.draft([(request, DraftLimit(limit))])[0]


def drafted_from(texts: Sequence[Sequence[int]], seed: int) -> Drafter:
    """Drafts what one of the texts goes on with, and something wrong somewhere in it now and then."""
    rng = random.Random(seed)

    def script(tokens: Sequence[int]) -> list[int]:
        text = next((text for text in texts if list(text[: len(tokens)]) == list(tokens)), ())
        draft = list(text[len(tokens) : len(tokens) + rng.randint(0, 14)])
        if draft and rng.random() < 0.6:
            draft[rng.randrange(len(draft))] = 30
        return draft

    return ScriptedDrafter(script)


def occurred(lengths: Sequence[int], texts: Sequence[Sequence[int]], past: bool) -> Matches:
    """Occurrences that match so many tokens, and went on so until their text ended: the first one's
    continuation stands at 100, and each further one's 100 further.
    """
    written = [SEPARATOR] * 100 * (len(texts) + 1)
    ends = [100 * number for number in range(1, len(texts) + 1)]
    for end, text in zip(ends, texts, strict=True):
        written[end : end + len(text)] = text
    return Matches(SuffixIndex((1,), written), ends, list(lengths), past)
