"""What drafters hear: everything, before they are asked again; of several rounds as of one change."""

from __future__ import annotations

from collections.abc import Sequence

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


def test_each_drafter_hears_of_each_of_its_rounds_when_it_is_asked_again() -> None:
    first, second = ScriptedDrafter(lambda history: None, name="first"), ScriptedDrafter(lambda history: None)
    drafters, view, request = started(first, second)
    one = commit(drafters, view, [4], asked=("first",))
    drafters.draft([request], {"first": [LIMIT]})
    assert first.outcomes == [one]
    two = commit(drafters, view, [5, 6], asked=("first",))
    drafters.draft([request], {"first": [LIMIT]})
    assert first.outcomes == [one, two]
    assert first.outcomes[0] is one, "as it was, with the draft"
    assert second.outcomes == []
    drafters.draft([request], {"scripted": [LIMIT]})
    assert second.outcomes == [Outcome(3, (4, 5, 6))]
    assert first.outcomes == [one, two]


def test_who_wants_successors_hears_of_its_rounds_at_once() -> None:
    eager = ScriptedDrafter(lambda history: None, name="eager", successors=2)
    drafters, view, request = started(eager)
    one = commit(drafters, view, [4], asked=("eager",))
    assert eager.outcomes == [one]
    commit(drafters, view, [5], asked=())
    assert eager.outcomes == [one], "not of those in which it was not asked"
    commit(drafters, view, [6], asked=("eager",))
    assert eager.outcomes == [one, Outcome(4, (5, 6))]
    drafters.draft([request], {"eager": [LIMIT]})
    assert len(eager.outcomes) == 2


@pytest.mark.parametrize("before", [1, 3])
def test_removed_text_that_was_not_told_yet_is_never_told(before: int) -> None:
    silent = ScriptedDrafter(lambda history: None)
    drafters, view, _ = started(silent)
    for token in range(4, 4 + before):
        commit(drafters, view, [token], asked=())
    view.tokens[2:] = [9]
    drafters.observe(view, Outcome(2, (9,)))
    drafters.stop(view)
    assert silent.outcomes == [Outcome(2, (9,))]


def test_a_drafter_serves_what_it_says() -> None:
    asked = []

    class Choosy(ScriptedDrafter):
        def serves(self, request: RequestView) -> bool:
            asked.append(request.id)
            return bool(request.prediction)

    drafters, view, _ = started(Choosy(lambda history: None, name="c"), ScriptedDrafter(lambda history: None))
    same = RequestView(2, [7], prompt_length=1)
    other = RequestView(3, [7], prompt_length=1, prediction=(1,))
    drafters.start(same)
    drafters.start(other)
    assert list(drafters.serving([view])) == list(drafters.serving([view, same])) == ["scripted"]
    assert list(drafters.serving([other])) == ["c", "scripted"]
    assert list(drafters.serving([view, other, same])) == ["c", "scripted"]
    assert asked == [1, 2, 3], "once"


def test_one_that_fails_later_serves_nobody_any_more() -> None:
    class Failing(ScriptedDrafter):
        def draft(self, requests: Sequence[tuple[RequestView, DraftLimit]]) -> list[Draft | None]:
            raise RuntimeError("tired")

    drafters, view, request = started(
        ScriptedDrafter(lambda history: None), Failing(lambda history: None, name="f")
    )
    assert list(drafters.serving([view])) == ["scripted", "f"]
    drafters.draft([request], {"f": [LIMIT]})
    assert list(drafters.serving([view])) == ["scripted"]


def test_one_that_cannot_say_whom_it_serves_is_dropped() -> None:
    class Failing(ScriptedDrafter):
        def serves(self, request: RequestView) -> bool:
            raise RuntimeError("nobody")

    drafters, view, _ = started(
        ScriptedDrafter(lambda history: None), Failing(lambda history: None, name="f")
    )
    assert list(drafters.serving([view])) == drafters.names == ["scripted"]
    assert "nobody" in drafters.notes[0]


def test_stopping_tells_the_rest() -> None:
    silent = ScriptedDrafter(lambda history: None)
    drafters, view, _ = started(silent)
    commit(drafters, view, [4, 5], asked=())
    drafters.stop(view)
    assert silent.outcomes == [Outcome(3, (4, 5))]
    assert not silent.open


def test_listening_counts_into_what_asking_costs() -> None:
    seconds = iter(range(100))
    silent = ScriptedDrafter(lambda history: None, successors=1)
    drafters = Drafters([silent], 16, clock=lambda: float(next(seconds)))
    view = RequestView(1, [1, 2, 3], prompt_length=3)
    drafters.start(view)
    drafters.observe(view, Outcome(3, ()))
    assert drafters.with_listening({"scripted": 5.0}) == {"scripted": 1005.0}
    assert drafters.with_listening({"scripted": 5.0}) == {"scripted": 5.0}
