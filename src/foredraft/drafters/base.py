"""Base of the model-free drafters: state per request, kept in step with the request's history."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

from foredraft.config import read_options
from foredraft.errors import SpeculationStringError
from foredraft.protocols import RequestView
from foredraft.types import MAX_DRAFT_TOKENS, Draft, DraftLimit, Outcome

State = TypeVar("State")


def read_longest(drafter: str, options: Mapping[str, str]) -> int:
    """The option `max` of a drafter that has no other: the maximum tokens of a draft. Raises
    SpeculationStringError.
    """
    longest: int = read_options(drafter, options, {"max": MAX_DRAFT_TOKENS})["max"]
    if longest < 1:
        raise SpeculationStringError(f"{drafter}: max={longest} must be at least 1.")
    return longest


class HistoryDrafter(ABC, Generic[State]):
    """A drafter whose state is a function of the request's history (and of stores shared on purpose).

    Subclasses build the state, extend it, and draft from it. If text is removed, the state is rebuilt unless
    a subclass can do better, so that it is never stale.
    """

    name: str

    def __init__(self) -> None:
        self._states: dict[int, State] = {}

    @abstractmethod
    def build(self, request: RequestView) -> State:
        """Build the state for `request.tokens`."""

    @abstractmethod
    def extend(self, state: State, request: RequestView, outcome: Outcome) -> None:
        """Extend the state by `outcome.tokens`, appended at `outcome.kept`, the former end of the history."""

    @abstractmethod
    def propose(self, state: State, request: RequestView, limit: DraftLimit) -> Draft | None:
        """A draft of at most `limit.max_tokens` (≥ 1) tokens."""

    def remove(self, state: State, request: RequestView, outcome: Outcome) -> State:  # noqa: ARG002
        """State after removed text: the history is now `old[:outcome.kept] + outcome.tokens`."""
        return self.build(request)

    def start(self, request: RequestView) -> None:
        self._states[request.id] = self.build(request)

    def draft(self, requests: Sequence[tuple[RequestView, DraftLimit]]) -> list[Draft | None]:
        return [
            self.propose(self._states[request.id], request, limit) if limit.max_tokens > 0 else None
            for request, limit in requests
        ]

    def observe(self, request: RequestView, outcome: Outcome) -> None:
        state = self._states[request.id]
        if outcome.kept + len(outcome.tokens) == len(request.tokens) and self.size(state) == outcome.kept:
            self.extend(state, request, outcome)
        else:
            self._states[request.id] = self.remove(state, request, outcome)

    @abstractmethod
    def size(self, state: State) -> int:
        """The number of history tokens that the state covers."""

    def stop(self, request: RequestView) -> None:
        self._states.pop(request.id, None)

    def close(self) -> None:
        self._states.clear()
