"""`grammar`: draft tokens that the request's constraint forces, or the end of a thought's budget.

Keys of a JSON schema, the rest of an enumerated value, fixed text in a regex: the model has no choice there,
so these tokens are always accepted, and verifying them in one round is cheaper than one round each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from foredraft.config import checked_by
from foredraft.drafters.base import HistoryDrafter, read_longest
from foredraft.errors import RequestError
from foredraft.protocols import Drafter, DrafterContext, GrammarCompiler, GrammarState, RequestView
from foredraft.types import MAX_DRAFT_TOKENS, Constraint, Draft, DraftLimit, Outcome, Thinking

NAME = "grammar"

_Asked: TypeAlias = tuple[Constraint | None, Thinking | None, int | None]
"""(constraint, how the answer thinks, budget of the thought)"""


@dataclass(slots=True)
class _Followed:
    """What a request asks for, and the answer's position in it, after `size` tokens, of which `observed` were
    observed. `state` is None if the history violates the constraint.
    """

    asked: _Asked
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
        if self._compiler is None or not _asks(request):
            return None
        start = self._compiler(request.params)
        if start is None:
            return None
        followed = _Followed(_asked(request), request.prompt_length, start, request.prompt_length, 0)
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
        if state is None and not _asks(request):
            return
        same = state is not None and state.asked == _asked(request)
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


def _asked(request: RequestView) -> _Asked:
    params = request.params
    return params.constraint, params.thinking, params.reasoning_budget


def _asks(request: RequestView) -> bool:
    """Whether anything may be forced."""
    params = request.params
    return params.constraint is not None or (
        params.thinking is not None and params.reasoning_budget is not None
    )


_read = partial(read_longest, NAME)


@checked_by(_read)
def create(context: DrafterContext, options: Mapping[str, str]) -> Drafter:
    """Create the drafter of the stage `grammar`. Option: `max`, the maximum tokens of a draft (at least 1).

    Raises SpeculationStringError.
    """
    return GrammarDrafter(context.grammar, _read(options))
