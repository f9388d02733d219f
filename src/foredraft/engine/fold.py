"""A whole answer is the fold of its events: one code path for streaming and not."""

from __future__ import annotations

from collections.abc import Iterable

from foredraft.errors import BackendError
from foredraft.types import Completion, Event, FinishEvent, TokenEvent


def fold(events: Iterable[Event]) -> Completion:
    """The completion that one request's events describe. Raises BackendError if they have no end."""
    tokens: list[TokenEvent] = []
    for event in events:
        if isinstance(event, FinishEvent):
            return Completion(
                text="".join(token.text for token in tokens) + event.text,
                tokens=tuple(token.token for token in tokens),
                origins=tuple(token.origin for token in tokens),
                logprobs=tuple(token.logprob for token in tokens if token.logprob is not None),
                finish_reason=event.reason,
                usage=event.usage,
                timings=event.timings,
                speculation=event.speculation,
                error=event.error,
                notice=event.notice,
            )
        tokens.append(event)
    raise BackendError("A request's events ended without a finish event.")
