"""The grammar drafter: forced tokens, and nothing where the model has a choice."""

from __future__ import annotations

import pytest

from drafter_cases import commit, draft
from foredraft.drafters.grammar import GrammarDrafter, create
from foredraft.errors import SpeculationStringError
from foredraft.protocols import Drafter, GrammarState, RequestView
from foredraft.testing import drafter_context
from foredraft.types import Constraint, Outcome, SamplingParams

CHOICE = Constraint("regex", "The (answer is (yes|no)|question) here")
PROMPT = list(b"? ")


def started(
    drafter: Drafter, constraint: Constraint | None, text: bytes = b"", number: int = 1
) -> RequestView:
    params = SamplingParams(constraint=constraint)
    request = RequestView(number, [*PROMPT, *text], params, prompt_length=len(PROMPT))
    drafter.start(request)
    return request


def new(**options: str) -> Drafter:
    return create(drafter_context(), options)


def drafted(drafter: Drafter, request: RequestView, limit: int = 63) -> bytes:
    found = draft(drafter, request, limit)
    if found is None:
        return b""
    assert found.source == "grammar"
    assert found.confidence == (1.0,) * len(found)
    return bytes(found.tokens)


def test_it_drafts_what_is_forced_and_nothing_where_there_is_a_choice() -> None:
    drafter = new()
    request = started(drafter, CHOICE)
    assert drafted(drafter, request) == b"The "
    commit(drafter, request, list(b"The "))
    assert drafted(drafter, request) == b""
    commit(drafter, request, list(b"a"))
    assert drafted(drafter, request) == b"nswer is "
    commit(drafter, request, list(b"nswer is n"))
    assert drafted(drafter, request) == b"o here"
    commit(drafter, request, list(b"o here"))
    assert drafted(drafter, request) == b""


def test_a_request_that_is_under_way_is_picked_up_where_it_is() -> None:
    drafter = new()
    assert drafted(drafter, started(drafter, CHOICE, b"The q")) == b"uestion here"


def test_removed_text_is_forgotten() -> None:
    drafter = new()
    request = started(drafter, CHOICE, b"The answer is n")
    commit(drafter, request, list(b"The q"), kept=len(PROMPT))
    assert drafted(drafter, request) == b"uestion here"


def test_a_next_turn_with_another_constraint_is_followed() -> None:
    drafter = new()
    request = started(drafter, CHOICE, b"The q")
    request.params = SamplingParams(constraint=Constraint("regex", "[0-9]: done"))
    request.prompt_length = len(request.tokens) + 2
    commit(drafter, request, list(b"..7"))
    assert drafted(drafter, request) == b": done"
    request.params = SamplingParams()
    commit(drafter, request, list(b":"))
    assert drafted(drafter, request) == b""


def test_without_a_constraint_it_has_nothing_to_say() -> None:
    drafter = new()
    request = started(drafter, None)
    commit(drafter, request, list(b"The "))
    assert drafted(drafter, request) == b""


def test_a_history_that_the_constraint_forbids_is_not_drafted_from() -> None:
    drafter = new()
    request = started(drafter, CHOICE, b"A question")
    assert drafted(drafter, request) == b""
    commit(drafter, request, list(b"The q"), kept=len(PROMPT))
    assert drafted(drafter, request) == b"uestion here"


def test_it_keeps_to_its_limits() -> None:
    drafter = new(max="3")
    request = started(drafter, CHOICE)
    assert drafted(drafter, request) == b"The"
    assert drafted(drafter, request, limit=2) == b"Th"
    assert draft(drafter, request, limit=0) is None
    with pytest.raises(SpeculationStringError, match="max=0"):
        new(max="0")
    with pytest.raises(SpeculationStringError, match="no option"):
        new(min="1")


def test_requests_are_apart_and_stopping_frees_them() -> None:
    drafter = new()
    one, two = started(drafter, CHOICE), started(drafter, CHOICE, b"The q", number=2)
    assert (drafted(drafter, one), drafted(drafter, two)) == (b"The ", b"uestion here")
    drafter.stop(one)
    assert drafted(drafter, two) == b"uestion here"
    drafter.stop(two)
    assert isinstance(drafter, GrammarDrafter)
    assert not drafter._states


def test_nothing_is_compiled_for_requests_without_a_constraint() -> None:
    """So that `auto` can hold this drafter where llguidance is not installed."""

    def compiler(params: SamplingParams) -> GrammarState:
        raise AssertionError(params)

    drafter = GrammarDrafter(compiler)
    request = started(drafter, None)
    commit(drafter, request, list(b"text"))
    assert draft(drafter, request) is None
    drafter.close()


def test_a_context_without_constraints_is_enough() -> None:
    drafter = GrammarDrafter(None)
    request = started(drafter, CHOICE)
    commit(drafter, request, list(b"The "))
    assert draft(drafter, request) is None


def test_forced_tokens_count_as_a_long_match_before_they_are_observed() -> None:
    drafter = new()
    request = started(drafter, CHOICE)
    assert isinstance(drafter, GrammarDrafter)
    assert drafter.match_length(request) > 32
    request.tokens.extend(b"The ")
    assert drafter.match_length(request) == 0
    drafter.observe(request, Outcome(len(PROMPT), tuple(b"The ")))
    commit(drafter, request, list(b"a"))
    assert drafter.match_length(request) > 32
    assert drafted(drafter, request) == b"nswer is "


def test_text_that_is_removed_after_a_look_at_its_end_is_forgotten() -> None:
    drafter = new()
    request = started(drafter, CHOICE, b"The answer is")
    assert isinstance(drafter, GrammarDrafter)
    request.tokens.extend(b" n")
    drafter.match_length(request)
    commit(drafter, request, list(b"The q"), kept=len(PROMPT))
    assert drafted(drafter, request) == b"uestion here"
