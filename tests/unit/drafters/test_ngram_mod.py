from __future__ import annotations

import pytest

from foredraft.drafters import ngram_mod
from foredraft.drafters.ngram_mod import NgramMod, create
from foredraft.errors import SpeculationStringError
from foredraft.protocols import Drafter, RequestView
from foredraft.testing import drafter_context
from foredraft.types import Draft, DraftLimit, Outcome

TEXT = list(range(100, 180))


def draft(drafter: Drafter, request: RequestView, limit: int = 64) -> Draft | None:
    return drafter.draft([(request, DraftLimit(limit))])[0]


def started(drafter: Drafter, tokens: list[int], *, number: int = 1, scope: str = "") -> RequestView:
    request = RequestView(id=number, tokens=tokens, scope=scope)
    drafter.start(request)
    return request


def test_follows_the_pool_as_far_as_it_knows() -> None:
    drafter = NgramMod(4, 0, 64)
    found = draft(drafter, started(drafter, TEXT + TEXT[:4]))
    assert found is not None
    # The text goes on after its end with its own beginning, so the draft goes round and round.
    assert found.tokens == tuple((TEXT[4:] + TEXT)[:64])
    assert dict(found.features) == {"match_length": 4, "count": 1}


def test_one_request_draws_on_another() -> None:
    drafter = NgramMod(4, 0, 64)
    drafter.stop(started(drafter, TEXT))
    found = draft(drafter, started(drafter, [1, 2, *TEXT[50:54]], number=2))
    assert found is not None
    assert found.tokens == tuple(TEXT[54:])


def test_the_latest_occurrence_replaces_the_earlier() -> None:
    drafter = NgramMod(2, 0, 1)
    found = draft(drafter, started(drafter, [1, 2, 3, 1, 2, 4, 1, 2]))
    assert found is not None
    assert found.tokens == (4,)


@pytest.mark.parametrize("size", [1, 3, ngram_mod.BULK + 50])
def test_observed_text_is_learned_like_a_prompt(size: int) -> None:
    text = [(7 * i * i) % 9_973 for i in range(600)]
    drafter = NgramMod(4, 0, 16)
    request = started(drafter, text[:200])
    while len(request.tokens) < len(text):
        kept = len(request.tokens)
        request.tokens.extend(text[kept : kept + size])
        drafter.observe(request, Outcome(kept, tuple(text[kept : kept + size])))
    request.tokens.extend(text[300:304])
    drafter.observe(request, Outcome(len(text), tuple(text[300:304])))
    found = draft(drafter, request)
    assert found is not None
    assert found.tokens == tuple(text[304:320])


def test_a_draft_shorter_than_min_is_dropped_unless_the_round_wanted_less() -> None:
    drafter = NgramMod(4, 20, 64)
    drafter.stop(started(drafter, TEXT))
    short, long = started(drafter, TEXT[61:65], number=2), started(drafter, TEXT[56:60], number=3)
    assert draft(drafter, short) is None  # 15 tokens are known
    found = draft(drafter, long)
    assert found is not None
    assert len(found) == 20
    capped = draft(drafter, short, limit=5)
    assert capped is not None
    assert len(capped) == 5


def test_defaults_are_llama_cpps_and_min_can_be_lifted() -> None:
    default = create(drafter_context(), {})
    assert isinstance(default, NgramMod)
    assert (default.n, default.shortest, default.longest) == (24, 48, 64)
    lifted = create(drafter_context(), {"min": "0"})
    assert isinstance(lifted, NgramMod)
    assert lifted.shortest == 0


@pytest.mark.parametrize("options", [{"n": "0"}, {"max": "0"}, {"max": "20"}, {"min": "65"}, {"m": "4"}])
def test_options_that_do_not_fit_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(SpeculationStringError):
        create(drafter_context(), options)


def test_short_histories_are_not_matched() -> None:
    drafter = NgramMod(4, 0, 8)
    for number, tokens in enumerate(([], [1], [1, 2, 3])):
        request = started(drafter, list(tokens), number=number)
        assert draft(drafter, request) is None
        for token in (5, 6, 7, 8, 5, 6, 7, 8):
            request.tokens.append(token)
            drafter.observe(request, Outcome(len(request.tokens) - 1, (token,)))
        found = draft(drafter, request)
        assert found is not None
        assert found.tokens[:4] == (5, 6, 7, 8)
