"""What every drafter that needs no second model promises (protocols.Drafter), whatever its method."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft import registry
from foredraft.config import Stage
from foredraft.drafters.base import HistoryDrafter
from foredraft.protocols import Drafter, RequestView
from foredraft.testing import FakeModel, drafter_context
from foredraft.types import Draft, DraftLimit, Logits, Outcome, Rows

VOCABULARY = 32
LOOP = [3, 1, 4, 15, 9, 2, 6, 5, 30, 8, 7]

SMALL = {
    "ngram-simple": {"n": "2", "m": "5"},
    "ngram-map-k": {"n": "2", "m": "5"},
    "ngram-map-k4v": {"n": "2", "m": "5"},
    "ngram-mod": {"n": "2", "min": "0", "max": "5"},
    "recycle": {"min-p": "0"},
}
"""Options with which a short text over a small alphabet has matches."""

POOLED = {"ngram-mod"}
"""Drafters that by design remember removed text, within a scope, in a store shared by its requests."""

LEARNED = {"recycle"}
"""The same, and what was removed may even rank before the history: what followed two tokens in another text
says more than what followed one of them in this one (tests/unit/drafters/test_recycle.py has the rest)."""

RETURNING = {"suffix"}
"""Those that remember what they drafted as a copy: where one token of it was replaced they may propose the
rest, which one that was not asked before does not know of."""


def in_a_loop(prefix: Sequence[int]) -> Logits:
    """Logits of a target that writes `LOOP` whatever it was given, for drafters that see what it computes."""
    logits = np.zeros(VOCABULARY, np.float32)
    last = prefix[-1] if prefix else -1
    logits[LOOP[(LOOP.index(last) + 1) % len(LOOP)] if last in LOOP else LOOP[0]] = 9.0
    return logits


def target() -> FakeModel:
    return FakeModel(VOCABULARY, logits=in_a_loop, features=("layer:1", "next"))


def compute(drafter: Drafter, request: RequestView, start: int) -> None:
    """The target computes the request's rows from `start` on, all but the last token's."""
    absorb, model, tokens = getattr(drafter, "absorb", None), target(), request.tokens[:-1]
    start = min(start, len(tokens))
    if absorb is not None and tokens[start:]:
        model.forward([Rows(0, 0, tokens, 0)])
        absorb(request, start, model.features()[start:])


def names() -> list[str]:
    """The built-in drafters that need no second model and no constraint, as far as they can be imported."""
    found = []
    for name in registry.drafter_names():
        if name in ("draft-model", "grammar"):
            continue
        try:
            registry.drafter_factory(name)
        except ModuleNotFoundError:
            continue
        found.append(name)
    return found


NAMES = names()

by_name = pytest.mark.parametrize("name", NAMES)
texts = st.lists(st.integers(0, 3), max_size=40)
edits = st.lists(st.tuples(st.integers(0, 40), texts), min_size=1, max_size=5)


def new(name: str) -> Drafter:
    return registry.create_drafter(Stage(name, SMALL.get(name, {})), drafter_context(target()))


def started(
    drafter: Drafter,
    tokens: Sequence[int],
    *,
    number: int = 1,
    scope: str = "",
    prediction: Sequence[int] = (),
) -> RequestView:
    request = RequestView(
        id=number, tokens=list(tokens), prompt_length=len(tokens), scope=scope, prediction=tuple(prediction)
    )
    drafter.start(request)
    compute(drafter, request, 0)
    return request


def draft(drafter: Drafter, request: RequestView, limit: int = 16) -> Draft | None:
    return drafter.draft([(request, DraftLimit(limit))])[0]


def change(
    drafter: Drafter,
    request: RequestView,
    kept: int,
    tokens: Sequence[int],
    drafted: Draft | None = None,
    accepted: int = 0,
) -> None:
    request.tokens[kept:] = tokens
    compute(drafter, request, max(0, kept - 1))
    drafter.observe(request, Outcome(kept, tuple(tokens), drafted, accepted))


def check(found: Draft | None, name: str, limit: int) -> None:
    if found is None:
        return
    assert 1 <= len(found) <= limit
    assert found.source == name
    assert all(type(token) is int and 0 <= token < VOCABULARY for token in found.tokens)
    assert found.parents is None or len(found.parents) == len(found)
    assert all(-1 <= parent < at for at, parent in enumerate(found.parents or ()))
    siblings = list(zip(found.parents or range(-1, len(found) - 1), found.tokens, strict=True))
    assert len(set(siblings)) == len(siblings)
    assert len(found.confidence) in (0, len(found))
    assert all(0 <= share <= 1 for share in found.confidence)


def play(drafter: Drafter, request: RequestView, text: Sequence[int], limit: int = 16) -> list[Draft | None]:
    """Rounds that commit `text` as the match rule would; what was drafted in each."""
    drafts: list[Draft | None] = []
    end = len(request.tokens) + len(text)
    future = list(text)
    while len(request.tokens) < end:
        found = draft(drafter, request, limit)
        drafts.append(found)
        accepted, parent = 0, -1
        if found is not None:
            parents = found.parents or range(-1, len(found) - 1)
            for row, (token, above) in enumerate(zip(found.tokens, parents, strict=True)):
                if above == parent and accepted < len(future) - 1 and token == future[accepted]:
                    accepted, parent = accepted + 1, row
        committed, future = future[: accepted + 1], future[accepted + 1 :]
        change(drafter, request, len(request.tokens), committed, found, accepted)
    return drafts


def test_every_built_in_method_of_ours_is_here() -> None:
    n_grams = {"ngram-cache", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-simple"}
    assert n_grams | {"heads", "prediction", "recycle", "suffix"} <= set(NAMES)


@by_name
def test_a_loop_is_drafted_right(name: str) -> None:
    drafter = new(name)
    assert drafter.name == name
    request = started(drafter, LOOP * 3, prediction=LOOP * 6)
    drafts = play(drafter, request, LOOP * 4)
    assert drafts[-1] is not None
    accepted = len(LOOP * 4) - len(drafts)
    assert accepted > len(LOOP) * 2
    found = draft(drafter, request, limit=4)
    assert found is not None
    assert found.tokens[0] == LOOP[0]


@by_name
@given(prompt=texts, text=texts, prediction=texts, limit=st.integers(1, 9))
def test_drafts_are_well_formed(
    name: str, prompt: list[int], text: list[int], prediction: list[int], limit: int
) -> None:
    drafter = new(name)
    for found in play(drafter, started(drafter, prompt, prediction=prediction), text, limit):
        check(found, name, limit)


@by_name
def test_a_limit_of_zero_drafts_nothing(name: str) -> None:
    drafter = new(name)
    request = started(drafter, LOOP * 4, prediction=LOOP)
    assert draft(drafter, request, limit=0) is None


@by_name
@given(prompt=texts, changes=edits, prediction=texts)
def test_after_edits_it_drafts_like_one_that_starts_there(
    name: str, prompt: list[int], changes: list[tuple[int, list[int]]], prediction: list[int]
) -> None:
    edited, fresh = new(name), new(name)
    request = started(edited, prompt, prediction=prediction)
    appended = False
    for kept, tokens in changes:
        draft(edited, request)
        appended = kept >= len(request.tokens)
        change(edited, request, min(kept, len(request.tokens)), tokens)
    # The prompt, for a drafter that cares where it ends, is still the first one.
    same = RequestView(
        id=1, tokens=list(request.tokens), prompt_length=len(prompt), prediction=tuple(prediction)
    )
    fresh.start(same)
    compute(fresh, same, 0)
    expected, found = draft(fresh, same), draft(edited, request)
    if name in RETURNING and appended:
        silent = new(name)
        again = started(silent, prompt, prediction=prediction)
        for kept, tokens in changes:
            change(silent, again, min(kept, len(again.tokens)), tokens)
        assert draft(silent, again) == expected
    if name in LEARNED or (name in RETURNING and appended):
        check(found, name, 16)
        assert found is not None or expected is None
    elif name not in POOLED:
        assert found == expected
    elif expected is not None:
        # What the history says counts; only where it says nothing may removed text go on.
        assert found is not None
        assert found.tokens[: len(expected)] == expected.tokens


@by_name
def test_an_edited_history_is_drafted_from(name: str) -> None:
    drafter = new(name)
    request = started(drafter, [20, 21, 22, 23] * 4, prediction=LOOP * 4)
    change(drafter, request, 0, LOOP * 3)
    found = draft(drafter, request, limit=3)
    if name == "prediction":  # which reads on from where it was, or finds its place again
        play(drafter, request, LOOP)
        found = draft(drafter, request, limit=3)
    assert found is not None
    assert found.tokens[0] == LOOP[0]


@by_name
def test_rounds_drafted_by_others_are_learned_from(name: str) -> None:
    drafter = new(name)
    request = started(drafter, [20, 21], prediction=LOOP * 4)
    for at in range(0, len(LOOP) * 3, 3):
        run = (LOOP * 3)[at : at + 3]
        other = Draft((*run[:-1], 19), "another")
        change(drafter, request, len(request.tokens), run, other, len(run) - 1)
    found = draft(drafter, request, limit=3)
    assert found is not None
    assert found.tokens[0] == LOOP[0]


@by_name
@given(first=texts, second=texts, more=texts)
def test_interleaved_requests_do_not_influence_each_other(
    name: str, first: list[int], second: list[int], more: list[int]
) -> None:
    together, alone = new(name), new(name)
    one = started(together, first, number=1, scope="a", prediction=more)
    two = started(together, second, number=2, scope="b", prediction=first)
    only = started(alone, second, number=2, scope="b", prediction=first)
    for token in more:
        both = together.draft([(one, DraftLimit(8)), (two, DraftLimit(8))])
        assert both[1] == draft(alone, only, limit=8)
        change(together, one, len(one.tokens), [token])
        change(together, two, len(two.tokens), [3 - token])
        change(alone, only, len(only.tokens), [3 - token])
    together.stop(one)
    assert draft(together, two) == draft(alone, only)


@by_name
def test_stop_frees_a_requests_state(name: str) -> None:
    drafter, fresh = new(name), new(name)
    drafter.stop(started(drafter, LOOP * 3, scope="a", prediction=LOOP))
    if isinstance(drafter, HistoryDrafter):
        assert not drafter._states
    other = [20, 21, 22, *LOOP[:3]]
    found = draft(drafter, started(drafter, other, scope="b"))  # the same id again
    assert found == draft(fresh, started(fresh, other, scope="b"))


@by_name
def test_close_may_be_called_twice(name: str) -> None:
    drafter = new(name)
    started(drafter, LOOP * 3)
    drafter.close()
    drafter.close()


@by_name
def test_a_thought_that_the_next_turn_drops(name: str) -> None:
    """A template leaves the thought out of the history: what follows is drafted as from the shorter text."""
    thought, answer, question = [20, 21, 22, 20, 21, 23] * 4, LOOP * 2, [25, 26]
    edited, fresh = new(name), new(name)
    request = started(edited, question, prediction=LOOP * 6)
    play(edited, request, [*thought, *answer])
    change(edited, request, len(question), [*answer, *question, *LOOP[:6]])
    same = RequestView(1, list(request.tokens), prompt_length=len(question), prediction=tuple(LOOP * 6))
    fresh.start(same)
    compute(fresh, same, 0)
    drafts = play(edited, request, LOOP[6:] + LOOP * 2)
    for found in drafts:
        check(found, name, 16)
    again = play(fresh, same, LOOP[6:] + LOOP * 2)
    assert request.tokens == same.tokens
    assert drafts[-1] is not None
    if name not in (LEARNED | POOLED | RETURNING):
        assert [it and it.tokens for it in drafts] == [it and it.tokens for it in again]
