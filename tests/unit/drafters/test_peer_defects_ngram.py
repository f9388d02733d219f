"""One test for each defect of the peers' n-gram drafters that docs/drafters.md lists: none may come back."""

from __future__ import annotations

from pathlib import Path

import pytest

from foredraft.drafters import (
    ngram_cache,
    ngram_map_k,
    ngram_map_k4v,
    ngram_mod,
    ngram_simple,
)
from foredraft.protocols import Drafter, DrafterFactory, RequestView
from foredraft.testing import drafter_context
from foredraft.types import Draft, DraftLimit, Outcome

CONTEXT = drafter_context()
KEY = [1, 2]
MATCHERS = [ngram_simple.create, ngram_map_k.create, ngram_map_k4v.create]
SHORT = {
    ngram_simple.create: {"n": "2", "m": "3"},
    ngram_map_k.create: {"n": "2", "m": "3"},
    ngram_map_k4v.create: {"n": "2", "m": "3"},
    ngram_mod.create: {"n": "2", "min": "0", "max": "3"},
    ngram_cache.create: {"n-min": "2", "max": "3"},
}


def started(drafter: Drafter, tokens: list[int], *, number: int = 1, scope: str = "") -> RequestView:
    request = RequestView(id=number, tokens=list(tokens), prompt_length=len(tokens), scope=scope)
    drafter.start(request)
    return request


def draft(drafter: Drafter, request: RequestView) -> Draft | None:
    return drafter.draft([(request, DraftLimit(64))])[0]


def append(drafter: Drafter, request: RequestView, tokens: list[int], *, one_by_one: bool = False) -> None:
    for run in [[token] for token in tokens] if one_by_one else [tokens]:
        kept = len(request.tokens)
        request.tokens.extend(run)
        drafter.observe(request, Outcome(kept, tuple(run)))


def replace(drafter: Drafter, request: RequestView, kept: int, tokens: list[int]) -> None:
    request.tokens[kept:] = tokens
    drafter.observe(request, Outcome(kept, tuple(tokens)))


def test_map_k_key_that_once_had_nothing_accepted_recovers() -> None:
    drafter = ngram_map_k.create(CONTEXT, {"n": "2", "m": "3"})
    request = started(drafter, [*KEY, 3, 4, 5, 0, *KEY])
    rejected = draft(drafter, request)
    assert rejected is not None
    request.tokens.append(9)
    drafter.observe(request, Outcome(8, (9,), rejected, 0))
    append(drafter, request, [6, 7, 0, *KEY])
    assert draft(drafter, request) is None  # the key is at 0
    append(drafter, request, [9, 6, 7, 0, *KEY])
    recovered = draft(drafter, request)
    assert recovered is not None
    assert recovered.tokens == (9, 6, 7)


def test_k4v_drafts_the_chosen_value_not_what_followed_the_latest_match() -> None:
    drafter = ngram_map_k4v.create(CONTEXT, {"n": "2", "m": "3"})
    chosen, latest = [3, 4, 5], [6, 7, 8]
    found = draft(drafter, started(drafter, [*KEY, *chosen, *KEY, *chosen, *KEY, *latest, *KEY]))
    assert found is not None
    assert found.tokens == tuple(chosen)


@pytest.mark.parametrize("create", MATCHERS)
def test_min_hits_is_read(create: DrafterFactory) -> None:
    drafter = create(CONTEXT, {"n": "2", "m": "3", "min-hits": "3"})
    passage = [*KEY, 3, 4, 5]
    request = started(drafter, passage * 3)
    append(drafter, request, KEY)
    assert draft(drafter, request) is not None
    replace(drafter, request, 10, KEY)
    assert draft(drafter, request) is None  # two hits


@pytest.mark.parametrize("create", SHORT)
def test_an_unrelated_longer_prompt_is_indexed_whole(create: DrafterFactory) -> None:
    drafter = create(CONTEXT, SHORT[create])
    request = started(drafter, [0, *KEY, 3, 4, 5, 0, *KEY])
    assert draft(drafter, request) is not None
    unrelated = [40, 41, 42, 10, 11, 12, 13, 14, 15, 16, 17, 18, 40, 41, 42]
    replace(drafter, request, 0, unrelated)
    found = draft(drafter, request)
    assert found is not None
    assert found.tokens == (10, 11, 12)  # the passage begins where the old prompt's positions were


@pytest.mark.parametrize("create", [*MATCHERS, ngram_cache.create])
def test_removed_text_is_forgotten(create: DrafterFactory) -> None:
    drafter = create(CONTEXT, SHORT[create])
    request = started(drafter, [50, 51, 52, *KEY, 3, 4, 5, *KEY, 3, 4, 5])
    replace(drafter, request, 3, KEY)
    assert draft(drafter, request) is None


def test_cache_keeps_a_requests_context_to_itself() -> None:
    drafter = ngram_cache.create(CONTEXT, {})
    first = started(drafter, [1, 2, 3, 4, 5] * 4)
    assert draft(drafter, first) is not None
    second = started(drafter, [1, 2, 3], number=2)
    assert draft(drafter, second) is None
    drafter.stop(first)
    assert draft(drafter, second) is None  # its prompt is not learned either


def test_cache_learns_from_single_token_steps() -> None:
    drafter = ngram_cache.create(CONTEXT, {})
    request = started(drafter, [7])
    append(drafter, request, [1, 2, 3, 4, 1, 2, 3], one_by_one=True)
    found = draft(drafter, request)
    assert found is not None
    assert found.tokens[0] == 4
    drafter.stop(request)
    request = started(drafter, [7], number=2)
    append(drafter, request, [1, 2, 3, 4], one_by_one=True)
    drafter.stop(request)
    finished = draft(drafter, started(drafter, [1, 2, 3], number=3))
    assert finished is not None
    assert finished.tokens[0] == 4


def test_cache_saves_its_dynamic_file(tmp_path: Path) -> None:
    path = tmp_path / "dynamic.bin"
    for expected in (None, (4, 5)):
        drafter = ngram_cache.create(CONTEXT, {"dynamic": str(path)})
        request = started(drafter, [1, 2, 3])
        found = draft(drafter, request)
        assert (found.tokens if found else None) == expected
        for _ in range(2):
            append(drafter, request, [9, 1, 2, 3, 4, 5])
        drafter.stop(request)
        drafter.close()
    assert path.exists()


def test_mod_checks_the_key() -> None:
    pool = ngram_mod.Pool(bits=1)  # two places: nearly every lookup lands in one that is taken
    drafter = ngram_mod.NgramMod(2, 0, 8, pool)
    drafter.stop(started(drafter, list(range(10, 40))))
    for before in range(100, 130):
        assert draft(drafter, started(drafter, [before, before + 1], number=2)) is None
    found = draft(drafter, started(drafter, [37, 38], number=3))
    assert found is not None
    assert found.tokens == (39,)


def test_mod_one_requests_bad_luck_leaves_the_pool_to_others() -> None:
    drafter = ngram_mod.NgramMod(2, 0, 3)
    lucky = started(drafter, [10, 11, 12, 13, 14, 10, 11])
    before = draft(drafter, lucky)
    assert before is not None
    unlucky = started(drafter, [20, 21, 22, 20, 21], number=2)
    for token in range(100, 120):
        rejected = Draft((22, 20, 21), "ngram-mod")
        unlucky.tokens.append(token)
        drafter.observe(unlucky, Outcome(len(unlucky.tokens) - 1, (token,), rejected, 0))
    drafter.stop(unlucky)
    assert draft(drafter, lucky) == before


def test_mod_never_offers_one_scopes_text_to_another() -> None:
    drafter = ngram_mod.NgramMod(2, 0, 3)
    started(drafter, [10, 11, 12, 13, 14], scope="alice")
    assert draft(drafter, started(drafter, [10, 11], number=2, scope="bob")) is None
    started(drafter, [10, 11, 20, 21, 22], number=3, scope="bob")
    found = draft(drafter, started(drafter, [10, 11], number=4, scope="alice"))
    assert found is not None
    assert found.tokens == (12, 13, 14)  # nor does one scope's text push the other's out


@pytest.mark.parametrize("create", SHORT)
def test_the_latest_match_counts_and_far_beyond_512_tokens(create: DrafterFactory) -> None:
    filler = list(range(20, 250))
    tokens = [*KEY, 3, 5, 6, *filler, *filler[::-1], *filler, *KEY, 4, 7, 8, *filler[::-1]]
    assert len(tokens) > 900
    drafter = create(CONTEXT, SHORT[create])
    request = started(drafter, tokens)
    if create is ngram_map_k4v.create or create is ngram_map_k.create:
        # Two continuations that differ: neither is preferred, until the latest one repeats.
        append(drafter, request, [*KEY, 4, 7, 8, *filler])
    append(drafter, request, KEY)
    found = draft(drafter, request)
    assert found is not None
    assert found.tokens == (4, 7, 8)
