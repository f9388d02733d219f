"""What drafters hear: everything, and of rounds they were not asked in later and at once."""

from __future__ import annotations

from collections.abc import Sequence

from foretoken.engine.drafting import Drafters
from foretoken.engine.request import Request, make_request
from foretoken.protocols import RequestView
from foretoken.testing import FakeModel, ScriptedDrafter
from foretoken.types import DraftLimit, Outcome

LIMIT = DraftLimit(4)


def started(*drafters: ScriptedDrafter) -> tuple[Drafters, RequestView, Request]:
    model = FakeModel(16)
    all_of_them = Drafters(drafters, 16)
    view = RequestView(1, [1, 2, 3], prompt_length=3)
    all_of_them.start(view)
    return all_of_them, view, make_request(view, model.tokenizer, context_length=64, vocab_size=16)


def commit(drafters: Drafters, view: RequestView, tokens: Sequence[int], asked: Sequence[str]) -> Outcome:
    outcome = Outcome(len(view.tokens), tuple(tokens))
    view.tokens.extend(tokens)
    drafters.observe(view, outcome, asked)
    return outcome


def test_rounds_without_a_question_are_told_together_before_the_next_one() -> None:
    silent = ScriptedDrafter(lambda history: None)
    drafters, view, request = started(silent)
    for token in (4, 5, 6):
        commit(drafters, view, [token], asked=())
    assert silent.outcomes == []
    drafters.draft([request], {silent.name: [LIMIT]})
    assert silent.outcomes == [Outcome(3, (4, 5, 6))]


def test_rounds_after_a_question_whose_round_failed_are_told_with_the_next_one() -> None:
    silent = ScriptedDrafter(lambda history: None)
    drafters, view, request = started(silent)
    commit(drafters, view, [4], asked=())
    drafters.draft([request], {silent.name: [LIMIT]})
    for token in (5, 6):  # the forward had no room, and nobody is asked for a while
        commit(drafters, view, [token], asked=())
    drafters.draft([request], {silent.name: [LIMIT]})
    assert silent.outcomes == [Outcome(3, (4,)), Outcome(4, (5, 6))]


def test_a_request_that_is_not_asked_for_is_told_when_it_is() -> None:
    silent = ScriptedDrafter(lambda history: None)
    drafters, view, request = started(silent)
    other = RequestView(2, [7, 8], prompt_length=2)
    drafters.start(other)
    company = make_request(other, FakeModel(16).tokenizer, context_length=64, vocab_size=16)
    commit(drafters, view, [4], asked=())
    commit(drafters, other, [9], asked=())
    drafters.draft([request, company], {silent.name: [LIMIT, None]})
    assert silent.outcomes == [Outcome(3, (4,))]
    commit(drafters, other, [10], asked=())
    drafters.draft([request, company], {silent.name: [LIMIT, LIMIT]})
    assert silent.outcomes == [Outcome(3, (4,)), Outcome(2, (9, 10))]


def test_each_drafter_hears_what_it_was_asked_about_at_once() -> None:
    first, second = ScriptedDrafter(lambda history: None, name="first"), ScriptedDrafter(lambda history: None)
    drafters, view, request = started(first, second)
    one = commit(drafters, view, [4], asked=("first",))
    two = commit(drafters, view, [5, 6], asked=("first",))
    assert first.outcomes == [one, two]
    assert second.outcomes == []
    drafters.draft([request], {"scripted": [LIMIT]})
    assert second.outcomes == [Outcome(3, (4, 5, 6))]
    assert first.outcomes == [one, two]


def test_what_was_not_told_yet_and_the_next_outcome_are_one_change() -> None:
    silent = ScriptedDrafter(lambda history: None)
    drafters, view, _ = started(silent)
    commit(drafters, view, [4], asked=())
    view.tokens.append(5)
    drafters.observe(view, Outcome(4, (5,)))
    assert silent.outcomes == [Outcome(3, (4, 5))]


def test_removed_text_that_was_not_told_yet_is_never_told() -> None:
    silent = ScriptedDrafter(lambda history: None)
    drafters, view, _ = started(silent)
    commit(drafters, view, [4, 5], asked=())
    view.tokens[2:] = [9]
    drafters.observe(view, Outcome(2, (9,)))
    assert silent.outcomes == [Outcome(2, (9,))]


def test_stopping_tells_the_rest() -> None:
    silent = ScriptedDrafter(lambda history: None)
    drafters, view, _ = started(silent)
    commit(drafters, view, [4, 5], asked=())
    drafters.stop(view)
    assert silent.outcomes == [Outcome(3, (4, 5))]
    assert not silent.open


def test_listening_counts_into_what_asking_costs() -> None:
    seconds = iter(range(100))
    silent = ScriptedDrafter(lambda history: None)
    drafters = Drafters([silent], 16, clock=lambda: float(next(seconds)))
    view = RequestView(1, [1, 2, 3], prompt_length=3)
    drafters.start(view)
    drafters.observe(view, Outcome(3, ()))
    assert drafters.with_listening({"scripted": 5.0}) == {"scripted": 1005.0}
    assert drafters.with_listening({"scripted": 5.0}) == {"scripted": 5.0}
