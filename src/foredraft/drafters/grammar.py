"""`grammar`: draft tokens that the request's constraint forces.

Keys of a JSON schema, the rest of an enumerated value, fixed text in a regex: the model has no choice there,
so these tokens are always accepted, and verifying them in one round is cheaper than one round each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from foredraft.config import read_options
from foredraft.drafters.base import HistoryDrafter
from foredraft.errors import RequestError, SpeculationStringError
from foredraft.protocols import Drafter, DrafterContext, GrammarCompiler, GrammarState, RequestView
from foredraft.types import MAX_DRAFT_TOKENS, Constraint, Draft, DraftLimit, Outcome

NAME = "grammar"


@dataclass(slots=True)
class _Followed:
    """A request's constraint and the answer's position in it, after `size` tokens, of which `observed` were
    observed. `state` is None if the history violates the constraint.
    """

    constraint: Constraint
    prompt_length: int
    state: GrammarState | None
    size: int
    observed: int


class GrammarDrafter(HistoryDrafter[_Followed | None]):
    """Drafts the tokens that the constraint forces, with confidence 1; nothing without a constraint."""

    name = NAME

    def __init__(self, compiler: GrammarCompiler | None, longest: int = MAX_DRAFT_TOKENS) -> None:
        super().__init__()
        self._compiler = compiler
        self._longest = longest

    def build(self, request: RequestView) -> _Followed | None:
        constraint = request.params.constraint
        if constraint is None or self._compiler is None:
            return None
        start = self._compiler(constraint)
        followed = _Followed(constraint, request.prompt_length, start, request.prompt_length, 0)
        self._advance(followed, request)
        followed.observed = followed.size
        return followed

    def _advance(self, followed: _Followed, request: RequestView) -> None:
        try:
            if followed.state is not None:
                followed.state.advance(request.tokens[followed.size :])
        except RequestError:
            followed.state = None
        followed.size = len(request.tokens)

    def extend(self, state: _Followed | None, request: RequestView, outcome: Outcome) -> None:  # noqa: ARG002
        if state is not None:
            self._advance(state, request)

    def size(self, state: _Followed | None) -> int:
        return state.size if state is not None else 0

    def observe(self, request: RequestView, outcome: Outcome) -> None:
        state = self._states[request.id]
        constraint = request.params.constraint
        if state is None and constraint is None:
            return
        same = state is not None and state.constraint == constraint
        if state and same and state.prompt_length == request.prompt_length and state.observed == outcome.kept:
            self._advance(state, request)  # from where `match_length` left off
            state.observed = state.size
        else:  # text was removed, or the conversation's next turn
            self._states[request.id] = self.build(request)

    def match_length(self, request: RequestView) -> int:
        """`MAX_DRAFT_TOKENS` where tokens are forced, which is as good as the longest repetition; else 0."""
        followed = self._states.get(request.id)
        if followed is None or followed.size > len(request.tokens):
            return 0
        if followed.size < len(request.tokens):
            self._advance(followed, request)
        return MAX_DRAFT_TOKENS if followed.state is not None and followed.state.forced() else 0

    def propose(self, state: _Followed | None, request: RequestView, limit: DraftLimit) -> Draft | None:  # noqa: ARG002
        if state is None or state.state is None:
            return None
        tokens = tuple(state.state.forced()[: min(limit.max_tokens, self._longest)])
        return Draft(tokens, self.name, confidence=(1.0,) * len(tokens)) if tokens else None


def create(context: DrafterContext, options: Mapping[str, str]) -> Drafter:
    """Create the drafter of the stage `grammar`. Option: `max`, the maximum tokens of a draft (at least 1).

    Raises SpeculationStringError.
    """
    longest = read_options(NAME, options, {"max": MAX_DRAFT_TOKENS})["max"]
    if longest < 1:
        raise SpeculationStringError(f"{NAME}: max={longest} must be at least 1.")
    return GrammarDrafter(context.grammar, longest)
