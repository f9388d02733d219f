"""What drafters observe: everything, before they draft again; several rounds as one change. And one of them
that fails is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from foredraft.engine.drafting import Drafters
from foredraft.engine.request import Request, make_request
from foredraft.protocols import RequestView
from foredraft.testing import FakeModel, ScriptedDrafter
from foredraft.types import Draft, DraftLimit, Outcome

LIMIT = DraftLimit(4)


def started(*drafters: ScriptedDrafter) -> tuple[Drafters, RequestView, Request]:
    model = FakeModel(16)
    all_of_them = Drafters(drafters, 16)
    view = RequestView(1, [1, 2, 3], prompt_length=3)
    all_of_them.start(view)
    return all_of_them, view, make_request(view, model.tokenizer, context_length=64, vocab_size=16)


def commit(drafters: Drafters, view: RequestView, tokens: Sequence[int]) -> Outcome:
    outcome = Outcome(len(view.tokens), tuple(tokens))
    view.tokens.extend(tokens)
    drafters.observe(view, outcome)
    return outcome


def test_rounds_without_an_attempt_are_observed_together_before_the_next_one() -> None:
    silent = ScriptedDrafter(lambda history: None)
    drafters, view, request = started(silent)
    for token in (4, 5, 6):
        commit(drafters, view, [token])
    assert silent.outcomes == []
    drafters.draft([request], {silent.name: [LIMIT]})
    assert silent.outcomes == [Outcome(3, (4, 5, 6))]


def test_rounds_after_an_attempt_whose_round_failed_are_observed_with_the_next_one() -> None:
    silent = ScriptedDrafter(lambda history: None)
    drafters, view, request = started(silent)
    commit(drafters, view, [4])
    drafters.draft([request], {silent.name: [LIMIT]})
    for token in (5, 6):  # the forward had no room, and no draft is attempted for a while
        commit(drafters, view, [token])
    drafters.draft([request], {silent.name: [LIMIT]})
    assert silent.outcomes == [Outcome(3, (4,)), Outcome(4, (5, 6))]


def test_changes_of_a_request_are_observed_when_it_is_drafted_for() -> None:
    silent = ScriptedDrafter(lambda history: None)
    drafters, view, request = started(silent)
    other = RequestView(2, [7, 8], prompt_length=2)
    drafters.start(other)
    beside = make_request(other, FakeModel(16).tokenizer, context_length=64, vocab_size=16)
    commit(drafters, view, [4])
    commit(drafters, other, [9])
    drafters.draft([request, beside], {silent.name: [LIMIT, None]})
    assert silent.outcomes == [Outcome(3, (4,))]
    commit(drafters, other, [10])
    drafters.draft([request, beside], {silent.name: [LIMIT, LIMIT]})
    assert silent.outcomes == [Outcome(3, (4,)), Outcome(2, (9, 10))]


def test_one_round_is_observed_as_it_was_by_all_drafters() -> None:
    first, second = ScriptedDrafter(lambda history: None, name="first"), ScriptedDrafter(lambda history: None)
    drafters, view, request = started(first, second)
    one = commit(drafters, view, [4])
    drafters.draft([request], {"first": [LIMIT]})
    two = commit(drafters, view, [5, 6])
    drafters.draft([request], {"first": [LIMIT]})
    assert first.outcomes == second.outcomes == [one, two]
    assert first.outcomes[0] is one, "as it was, with the draft"
    drafters.draft([request], {"scripted": [LIMIT]})
    assert first.outcomes == second.outcomes == [one, two], "once"


@pytest.mark.parametrize("before", [1, 3])
def test_removed_text_that_was_not_observed_yet_is_never_observed(before: int) -> None:
    silent = ScriptedDrafter(lambda history: None)
    drafters, view, _ = started(silent)
    for token in range(4, 4 + before):
        commit(drafters, view, [token])
    view.tokens[2:] = [9]
    drafters.observe(view, Outcome(2, (9,)))
    drafters.stop(view)
    assert silent.outcomes == [Outcome(2, (9,))]


def test_before_it_stops_the_rest_is_observed() -> None:
    silent = ScriptedDrafter(lambda history: None)
    drafters, view, _ = started(silent)
    commit(drafters, view, [4, 5])
    drafters.stop(view)
    assert silent.outcomes == [Outcome(3, (4, 5))]
    assert not silent.open


@pytest.mark.parametrize("drafted", [True, False])
def test_late_drafters_read_a_text_when_they_first_draft_for_it(drafted: bool) -> None:
    silent = ScriptedDrafter(lambda history: None)
    drafters, view = Drafters([silent], 16, late=True), RequestView(1, [1, 2, 3], prompt_length=3)
    request = make_request(view, FakeModel(16).tokenizer, context_length=64, vocab_size=16)
    drafters.start(view)
    commit(drafters, view, [4])
    assert not silent.open
    if drafted:
        drafters.draft([request], {silent.name: [LIMIT]})
        assert silent.open
        assert silent.outcomes == [], "the text that it began with has the token"
    changed = commit(drafters, view, [5])
    drafters.stop(view)
    assert silent.outcomes == ([changed] if drafted else [])
    assert not silent.open
    assert not drafters.notes


def test_a_text_that_was_not_read_repeats_nothing() -> None:
    matching = Matching(lambda history: None)
    drafters, view = Drafters([matching], 16, late=True), RequestView(1, [1, 2, 3], prompt_length=3)
    request = make_request(view, FakeModel(16).tokenizer, context_length=64, vocab_size=16)
    drafters.start(view)
    (proposer,) = drafters.proposers()
    assert proposer.match_length(view) == 0
    drafters.draft([request], {matching.name: [LIMIT]})
    assert proposer.match_length(view) == 3


# --- match_length --------------------------------------------------------------------------------------


class Matching(ScriptedDrafter):
    """Its match has the length of the text; one that ends with a 5 is too much for it."""

    def match_length(self, request: RequestView) -> int:
        if request.tokens[-1] == 5:
            raise RuntimeError("five")
        return len(request.tokens)


def test_a_planner_sees_names_and_match_lengths() -> None:
    drafters, view, _ = started(
        Matching(lambda history: None, name="m"), ScriptedDrafter(lambda history: None)
    )
    found = [(proposer.name, proposer.match_length(view)) for proposer in drafters.proposers()]
    assert found == [("m", 3), ("scripted", 0)]


def test_one_whose_match_length_fails_is_dropped() -> None:
    drafters, view, request = started(
        ScriptedDrafter(lambda history: None), Matching(lambda history: [1], name="m")
    )
    [_, matching] = drafters.proposers()
    assert matching.match_length(view) == 3
    commit(drafters, view, [5])
    assert matching.match_length(view) == 0
    view.tokens[-1] = 4
    assert matching.match_length(view) == 0, "and is called no more"
    assert drafters.names == [proposer.name for proposer in drafters.proposers()] == ["scripted"]
    assert drafters.notes == ["drafter m failed and is no longer used: RuntimeError('five')"]
    assert drafters.draft([request], {"m": [LIMIT], "scripted": [LIMIT]})[0] == [[]]


# --- failures ------------------------------------------------------------------------------------------


def test_one_that_fails_is_dropped_and_the_others_go_on() -> None:
    class Failing(ScriptedDrafter):
        def draft(self, requests: Sequence[tuple[RequestView, DraftLimit]]) -> list[Draft | None]:
            raise RuntimeError("tired")

    drafters, _, request = started(Failing(lambda history: None, name="f"), ScriptedDrafter(lambda _: [1]))
    limits = {"f": [LIMIT], "scripted": [LIMIT]}
    [candidates], _ = drafters.draft([request], limits)
    assert [draft.source for draft in candidates] == ["scripted"]
    assert drafters.names == ["scripted"]
    assert "tired" in drafters.notes[0]


def test_each_drafter_s_time_is_its_own_and_what_it_observes_before_is_part_of_it() -> None:
    seconds = [0.0]

    class Slow(ScriptedDrafter):
        def observe(self, request: RequestView, outcome: Outcome) -> None:
            seconds[0] += 2.0

        def draft(self, requests: Sequence[tuple[RequestView, DraftLimit]]) -> list[Draft | None]:
            seconds[0] += 1.0
            return [None] * len(requests)

    first, second = Slow(lambda history: None, name="first"), Slow(lambda history: None, name="second")
    drafters = Drafters([first, second], 16, clock=lambda: seconds[0])
    view = RequestView(1, [1, 2, 3], prompt_length=3)
    drafters.start(view)
    request = make_request(view, FakeModel(16).tokenizer, context_length=64, vocab_size=16)
    commit(drafters, view, [4])
    _, spent = drafters.draft([request], {"first": [LIMIT], "second": [LIMIT]})
    assert spent == {"first": 5000.0, "second": 1000.0}
    assert {name: stats.ms for name, stats in request.stats.drafters().items()} == spent


@pytest.mark.parametrize(
    "draft",
    [
        Draft((4,), "another"),
        Draft((4,), "odd", confidence=(0.9, 0.9)),
        Draft((4,), "odd", confidence=(float("nan"),)),
        Draft((4,), "odd", features={"match_length": float("nan")}),
        Draft((4,), "odd", features=None),  # type: ignore[arg-type]
        Draft((4, 5), "odd", probs=(np.ones(16) / 16,)),
    ],
    ids=["source", "confidences", "no number", "features", "no features", "distributions"],
)
def test_one_whose_draft_is_malformed_is_dropped(draft: Draft) -> None:
    odd = ScriptedDrafter(lambda history: draft, name="odd")
    drafters, _, request = started(odd)
    assert drafters.draft([request], {"odd": [LIMIT]})[0] == [[]]
    assert not drafters
    assert "odd failed" in drafters.notes[0]


def test_a_match_length_that_is_no_number_drops_its_drafter() -> None:
    odd = ScriptedDrafter(lambda history: None)
    odd.match_length = lambda request: "4"  # type: ignore[attr-defined]
    drafters, view, _ = started(odd)
    assert drafters.proposers()[0].match_length(view) == 0
    assert not drafters
