from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drafter_cases import commit, draft, start
from foredraft.drafters import suffix_store
from foredraft.drafters.suffix import LOADED_SCOPES, SuffixDrafter, create
from foredraft.errors import SpeculationStringError
from foredraft.protocols import UNKEPT, Drafter, RequestView
from foredraft.testing import FakeModel, drafter_context, run_drafter
from foredraft.types import Draft, DraftLimit, Outcome

TEXTS = st.lists(st.integers(0, 3), max_size=60)


# --- the longest match -----------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 1), max_size=40), st.integers(2, 6))
def test_a_lone_deep_match_is_measured_exactly(noise: list[int], length: int) -> None:
    phrase = list(range(10, 10 + length))
    drafter = SuffixDrafter()
    found = draft(drafter, start(drafter, [*noise, 7, *phrase, 8, 9, *noise, 6, *phrase]))
    assert found is not None
    assert found.tokens[:2] == (8, 9)
    known = {"match_length": length, "count": 1, "agree": 1}
    assert found.features == {**known, "from_store": 0, "from_prompt": 1}


def test_a_longer_match_beats_newer_shorter_ones() -> None:
    drafter = SuffixDrafter()
    text = [1, 2, 3, 4, 50, 9, 9, 3, 4, 60, 8, 8, 3, 4, 60, 1, 2, 3, 4]
    found = draft(drafter, start(drafter, text))
    assert found is not None
    assert found.tokens[0] == 50
    assert found.features["match_length"] == 4


def test_among_equal_matches_the_newest_wins() -> None:
    drafter = SuffixDrafter()
    found = draft(drafter, start(drafter, [1, 2, 70, 5, 1, 2, 80, 6, 1, 2]))
    assert found is not None
    assert found.tokens[0] == 80
    assert found.features["count"] == 2
    assert 0.5 < found.features["agree"] < 1


def test_older_matches_outvote_a_newer_one() -> None:
    drafter = SuffixDrafter()
    text = [1, 2, 70, 5, 1, 2, 70, 6, 1, 2, 70, 4, 1, 2, 70, 3, 1, 2, 80, 9, 1, 2]
    found = draft(drafter, start(drafter, text))
    assert found is not None
    assert found.tokens[0] == 70


def test_shortest_match_is_respected() -> None:
    text = [1, 5, 6, 7, 1]
    one, two = SuffixDrafter(), SuffixDrafter(shortest_match=2)
    assert draft(one, start(one, text)) is not None
    assert draft(two, start(two, text)) is None


def test_a_repeating_text_is_continued_past_its_end() -> None:
    drafter = SuffixDrafter()
    found = draft(drafter, start(drafter, [1, 2, 3] * 3))
    assert found is not None
    assert found.tokens == (1, 2, 3) * 21


@given(TEXTS, st.integers(1, 80))
def test_drafts_are_well_formed(text: list[int], limit: int) -> None:
    drafter = SuffixDrafter(longest=40)
    found = draft(drafter, start(drafter, text), limit)
    if found is not None:
        assert 1 <= len(found) <= min(limit, 40)
        assert len(found.confidence) == len(found)
        assert all(0 <= value < 1 for value in found.confidence)
        assert set(found.tokens) <= set(text)


# --- confidence ------------------------------------------------------------------------------------------


def test_confidence_rises_with_the_match_and_falls_with_dissent() -> None:
    def first(text: list[int]) -> float:
        drafter = SuffixDrafter()
        found = draft(drafter, start(drafter, text))
        assert found is not None
        return found.confidence[0]

    short = first([4, 1, 70, 5, 1])
    long = first([4, 3, 2, 1, 70, 5, 4, 3, 2, 1])
    disputed = first([4, 3, 2, 1, 70, 5, 4, 3, 2, 1, 80, 6, 4, 3, 2, 1])
    assert short < long
    assert disputed < long


def test_confidence_falls_where_the_occurrences_part() -> None:
    drafter = SuffixDrafter()
    text = [1, 2, 30, 31, 40, 9, 1, 2, 30, 31, 50, 8, 1, 2]
    found = draft(drafter, start(drafter, text))
    assert found is not None
    assert found.tokens[:3] == (30, 31, 50)
    assert found.confidence[2] < found.confidence[0] < found.confidence[1]


def test_is_no_worse_than_the_newest_longest_match() -> None:
    """Mean accepted tokens a draft, against the baseline, on a text with reworded repetitions."""
    rng = random.Random(3)
    phrases = [[rng.randrange(40) for _ in range(rng.randrange(4, 20))] for _ in range(12)]
    text = [token for _ in range(120) for token in [*rng.choice(phrases), rng.randrange(40)]]

    def accepted(drafts: list[Draft], outcomes: list[int]) -> float:
        return sum(outcomes) / len(drafts)

    counted: list[int] = []

    class Counting(SuffixDrafter):
        def observe(self, request: RequestView, outcome: Outcome) -> None:
            counted.append(outcome.accepted)
            super().observe(request, outcome)

    ours = accepted(run_drafter(Counting(), text, prompt=200), counted)
    baseline: list[int] = []
    at = 200
    while at < len(text):
        best, place = 0, 0
        for end in range(1, at):
            length = 0
            while length < end and text[end - 1 - length] == text[at - 1 - length]:
                length += 1
            if length >= best:
                best, place = length, end
        right = 0
        while (
            best
            and place + right < at
            and at + right < len(text) - 1
            and text[place + right] == text[at + right]
        ):
            right += 1
        if best:
            baseline.append(right)
        at += right + 1
    assert ours >= 0.97 * sum(baseline) / len(baseline)


# --- state -----------------------------------------------------------------------------------------------


@given(TEXTS, st.lists(st.tuples(st.integers(0, 80), st.lists(st.integers(0, 3), max_size=9)), max_size=6))
def test_state_equals_a_fresh_build(text: list[int], edits: list[tuple[int, list[int]]]) -> None:
    drafter = SuffixDrafter()
    request = start(drafter, text)
    for kept, tokens in edits:
        commit(drafter, request, tokens, kept=min(kept, len(request.tokens)))
        fresh = SuffixDrafter()
        drafter._states[request.id].copying = None  # what was drafted before is no part of the history
        same = start(fresh, request.tokens)
        fresh._states[same.id].prompt_length = request.prompt_length
        assert draft(drafter, request) == draft(fresh, same)


def test_it_says_whether_the_prompt_or_the_answer_goes_on_so() -> None:
    drafter = SuffixDrafter()
    request = start(drafter, [1, 2, 3, 4, 5, 6])
    commit(drafter, request, [7, 2, 3])
    copied = draft(drafter, request)
    assert copied is not None
    assert (copied.tokens[0], copied.features["from_prompt"]) == (4, 1)
    commit(drafter, request, [8, 9, 7, 2, 3])
    repeated = draft(drafter, request)
    assert repeated is not None
    assert (repeated.tokens[0], repeated.features["from_prompt"]) == (8, 0)


def test_requests_do_not_see_each_other_without_a_store() -> None:
    drafter = SuffixDrafter()
    first, second = start(drafter, list(range(50))), start(drafter, [], number=2)
    commit(drafter, second, list(range(20)))
    assert draft(drafter, second) is None
    drafter.stop(first)
    drafter.stop(second)
    assert draft(drafter, start(drafter, list(range(20)))) is None


# --- past outputs ----------------------------------------------------------------------------------------

OUTPUT = list(range(100, 140))


def say(drafter: Drafter, *, scope: str = "", number: int = 1) -> None:
    request = start(drafter, [1, 2, 3, 4], number=number, scope=scope)
    commit(drafter, request, OUTPUT)
    drafter.stop(request)


def draft_when_read(drafter: Drafter, tokens: list[int], *, number: int = 1, scope: str = "") -> Draft | None:
    """What is drafted for a new request once the past outputs of its scope are read."""
    assert isinstance(drafter, SuffixDrafter)
    request = start(drafter, tokens, number=number, scope=scope)
    drafter.disk.wait()
    return draft(drafter, request)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_finished_output_is_found_by_the_next_request(tmp_path: Path, restarted: bool) -> None:
    drafter = create(drafter_context(store=tmp_path), {"min-p": "0"})
    say(drafter)
    if restarted:
        drafter.close()
        drafter = create(drafter_context(store=tmp_path), {"min-p": "0"})
    found = draft_when_read(drafter, [9, 8, 3, 4])
    assert found is not None
    assert found.tokens == tuple(OUTPUT)
    assert found.features["from_store"] == 1
    assert found.features["match_length"] == 2


def test_scopes_never_mix(tmp_path: Path) -> None:
    drafter = create(drafter_context(store=tmp_path), {"min-p": "0"})
    say(drafter, scope="ann")
    assert draft_when_read(drafter, OUTPUT[:10], number=2, scope="bob") is None
    drafter.close()
    again = create(drafter_context(store=tmp_path), {"min-p": "0"})
    assert draft_when_read(again, OUTPUT[:10], scope="bob") is None
    assert draft_when_read(again, OUTPUT[:10], scope="") is None
    assert draft_when_read(again, OUTPUT[:10], scope="ann") is not None


def test_an_unkept_scope_finds_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    drafter = create(drafter_context(store=tmp_path), {"min-p": "0"})
    say(drafter, scope=f"{UNKEPT}x")
    assert draft_when_read(drafter, OUTPUT[:10], number=2, scope=f"{UNKEPT}x") is None
    drafter.close()
    assert not list(tmp_path.rglob("*.bin"))


def test_vocabularies_never_mix(tmp_path: Path) -> None:
    drafter = create(drafter_context(FakeModel(400), store=tmp_path), {})
    say(drafter)
    drafter.close()
    other = create(drafter_context(FakeModel(300), store=tmp_path), {})
    assert draft_when_read(other, OUTPUT[:10]) is None


def test_without_a_store_the_disk_is_not_touched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    drafter = create(drafter_context(store=None), {})
    say(drafter)
    drafter.close()
    assert list(tmp_path.iterdir()) == []
    assert draft(drafter, start(drafter, OUTPUT[:10])) is None


@pytest.mark.parametrize("options", [{}, {"store_tokens": "0"}])
def test_the_disk_is_not_touched_before_an_output_is_finished(
    tmp_path: Path, options: dict[str, str]
) -> None:
    store = tmp_path / "store"
    drafter = create(drafter_context(store=store), options)
    request = start(drafter, [1, 2, 3])
    draft(drafter, request)
    commit(drafter, request, OUTPUT)
    draft(drafter, request)
    assert not store.exists()
    drafter.stop(request)
    drafter.close()
    assert store.exists() == (not options)


def test_a_request_without_output_is_not_remembered(tmp_path: Path) -> None:
    drafter = create(drafter_context(store=tmp_path), {"min-p": "0"})
    drafter.stop(start(drafter, OUTPUT))
    drafter.close()
    assert list(tmp_path.iterdir()) == []


def test_every_turn_of_a_conversation_is_remembered(tmp_path: Path) -> None:
    drafter = create(drafter_context(store=tmp_path), {"min-p": "0"})
    request = start(drafter, [1, 2])
    commit(drafter, request, OUTPUT)
    request.prompt_length = len(request.tokens) + 2
    commit(drafter, request, [5, 6])
    later = start(drafter, [7, *OUTPUT[:5]], number=2)
    found = draft(drafter, later)
    assert found is not None
    assert found.tokens == tuple(OUTPUT[5:])


def test_removed_text_does_not_hide_the_output_before_it(tmp_path: Path) -> None:
    drafter = create(drafter_context(store=tmp_path), {"min-p": "0"})
    request = start(drafter, [1, 2])
    commit(drafter, request, OUTPUT)
    request.prompt_length = 3
    commit(drafter, request, [5], kept=2)
    found = draft(drafter, start(drafter, OUTPUT[:5], number=2))
    assert found is not None
    assert found.tokens == tuple(OUTPUT[5:])


def test_the_requests_own_text_comes_before_an_equal_match_in_the_store(tmp_path: Path) -> None:
    drafter = create(drafter_context(store=tmp_path), {"min-p": "0"})
    say(drafter)
    found = draft(drafter, start(drafter, [*OUTPUT[:3], 77, 5, *OUTPUT[:3]], number=2))
    assert found is not None
    assert found.tokens[0] == 77
    assert found.features["from_store"] == 0
    assert found.features["count"] == 2


def test_past_outputs_in_memory_are_bounded(tmp_path: Path) -> None:
    drafter = create(drafter_context(store=tmp_path), {"store_tokens": "300"})
    for number in range(30):
        request = start(drafter, [1, 2])
        commit(drafter, request, [number] * 5 + OUTPUT)
        assert isinstance(drafter, SuffixDrafter)
        assert max(len(past.index or ()) for past in drafter._pasts.values()) <= 375
        drafter.stop(request)
    drafter.close()


def test_idle_scopes_are_unloaded_and_saved(tmp_path: Path) -> None:
    drafter = create(drafter_context(store=tmp_path), {"min-p": "0"})
    assert isinstance(drafter, SuffixDrafter)
    for number in range(LOADED_SCOPES + 3):
        say(drafter, scope=f"user {number}")
    assert len(drafter._pasts) == LOADED_SCOPES
    assert draft_when_read(drafter, OUTPUT[:9], scope="user 0") is not None


def test_close_may_be_called_twice(tmp_path: Path) -> None:
    drafter = create(drafter_context(store=tmp_path), {"min-p": "0"})
    say(drafter)
    drafter.close()
    size = next(tmp_path.iterdir()).stat().st_size
    drafter.close()
    assert next(tmp_path.iterdir()).stat().st_size == size


@pytest.mark.parametrize(
    "options", [{"max": "0"}, {"max": "64"}, {"min": "0"}, {"candidates": "0"}, {"tree": "1"}, {"max": "x"}]
)
def test_bad_options(options: dict[str, str]) -> None:
    with pytest.raises(SpeculationStringError):
        create(drafter_context(), options)


def test_options_are_obeyed() -> None:
    drafter = create(drafter_context(), {"max": "5", "min": "3"})
    assert draft(drafter, start(drafter, [1, 2, 9, 1, 2])) is None
    found = draft(drafter, start(drafter, [1, 2, 3] * 8))
    assert found is not None
    assert len(found) == 5


def test_a_named_drafter_ends_where_it_is_more_likely_wrong_and_auto_asks_for_more() -> None:
    history = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1]
    request = RequestView(id=1, tokens=history, prompt_length=len(history))
    lengths = []
    for options in ({}, {"min-p": "0.02"}, {"min-p": "0"}):
        drafter = create(drafter_context(), options)
        drafter.start(request)
        draft = drafter.draft([(request, DraftLimit(8))])[0]
        lengths.append(len(draft) if draft else 0)
    assert lengths[0] < lengths[1] <= lengths[2] == 8


def test_a_limit_on_survival_ends_the_draft() -> None:
    drafter = SuffixDrafter()
    request = start(drafter, [1, 2, 3, 4, *range(10, 60), 1, 2, 3, 4])
    [whole] = drafter.draft([(request, DraftLimit(40))])
    [cut] = drafter.draft([(request, DraftLimit(40, min_survival=0.4))])
    assert whole is not None
    assert cut is not None
    survival = 1.0
    expected = sum((survival := survival * chance) >= 0.4 for chance in whole.confidence)
    assert 1 < len(cut) == expected < len(whole)
    assert cut.tokens == whole.tokens[:expected]


def test_what_waits_is_written_before_close(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suffix_store, "FLUSH_TOKENS", 3 * len(OUTPUT))
    drafter = create(drafter_context(store=tmp_path), {"min-p": "0"})
    assert isinstance(drafter, SuffixDrafter)
    say(drafter)
    assert not list(tmp_path.iterdir())
    say(drafter)
    say(drafter)
    drafter.disk.wait()
    assert next(tmp_path.iterdir()).stat().st_size > 3 * len(OUTPUT)
    drafter.close()
