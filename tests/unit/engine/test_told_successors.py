"""Which drafters are told the target's likeliest next tokens, of which rows, and that others cost nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from foredraft import Engine, SamplingParams
from foredraft.engine import round as round_module
from foredraft.planner import StaticPlanner
from foredraft.protocols import Planner, RequestView
from foredraft.sampling.successors import Successors, verified_successors
from foredraft.testing import FakeModel, ScriptedDrafter, markov_logits
from foredraft.types import Draft, DraftLimit, Load, Logits, Outcome
from planner_doubles import PlannerAround

VOCABULARY = 30
LANGUAGE = markov_logits(VOCABULARY, order=2, seed=5)
PROMPT = [1, 2, 3]
WANTED = 3


def best(history: Sequence[int]) -> tuple[int, ...]:
    """The `WANTED` likeliest tokens after a history."""
    logits = LANGUAGE(history)
    near = logits >= logits.max() - 4
    return tuple(int(token) for token in np.argsort(-logits, kind="stable")[:WANTED] if near[token])


@pytest.fixture
def extractions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many successors were asked for, each time logits were read for them."""
    calls: list[int] = []

    def counted(last: int, draft: Draft | None, rows: Logits, k: int) -> Successors:
        calls.append(k)
        return verified_successors(last, draft, rows, k)

    monkeypatch.setattr(round_module, "verified_successors", counted)
    return calls


def engine(*drafters: ScriptedDrafter, planner: Planner | None = None) -> Engine:
    return Engine(FakeModel(VOCABULARY, logits=LANGUAGE), drafters=drafters, planner=planner)


def listening(drafts: Sequence[int] | Draft | None = None) -> ScriptedDrafter:
    return ScriptedDrafter(lambda _: drafts, name="listening", successors=WANTED)


def text_before(outcome: Outcome, output: Sequence[int]) -> list[int]:
    return [*PROMPT, *output][: outcome.kept]


@pytest.mark.parametrize("draft", [None, (7, 8, 9), Draft((7, 8, 9), "listening", parents=(-1, -1, 0))])
def test_every_computed_row_is_told_also_of_rejected_tokens(draft: tuple[int, ...] | Draft | None) -> None:
    drafter = listening(draft)
    output = engine(drafter).generate(PROMPT, max_tokens=12, ignore_eos=True).tokens
    assert len(drafter.outcomes) > 4
    for outcome in drafter.outcomes[:-1]:  # in the last round no draft could follow, so none was asked for
        before = text_before(outcome, output)
        paths = [before]
        verified = outcome.draft
        for i in range(len(verified) if verified else 0):
            assert verified is not None
            above = i if verified.parents is None else verified.parents[i] + 1
            paths.append([*paths[above], verified.tokens[i]])
        assert outcome.successors == tuple((path[-1], best(path)) for path in paths)
    assert any(len(outcome.successors) > 1 for outcome in drafter.outcomes) == (draft is not None)


def test_the_prompt_s_last_row_is_told() -> None:
    drafter = listening()
    engine(drafter).generate(PROMPT, max_tokens=1)
    [outcome] = drafter.outcomes
    assert outcome.successors == ((PROMPT[-1], best(PROMPT)),)


def test_nothing_is_read_where_no_drafter_wants_it(extractions: list[int]) -> None:
    drafter = ScriptedDrafter(lambda _: [7, 8])
    engine(drafter).generate(PROMPT, max_tokens=20, ignore_eos=True)
    engine().generate(PROMPT, max_tokens=20, ignore_eos=True)
    assert extractions == []
    assert all(outcome.successors == () for outcome in drafter.outcomes)


class Asking(PlannerAround):
    """Asks the listening drafter for the requests in `asked` only."""

    def __init__(self, asked: set[int] | None = None) -> None:
        super().__init__(StaticPlanner())
        self.asked = asked or set()

    def limits(
        self, requests: Sequence[RequestView], drafters: Sequence[str], load: Load
    ) -> Mapping[str, Sequence[DraftLimit | None]]:
        limits = dict(super().limits(requests, drafters, load))
        limits["listening"] = [
            limit if request.tokens[0] in self.asked else None
            for request, limit in zip(requests, limits["listening"], strict=True)
        ]
        return limits


def test_nothing_is_read_while_the_drafter_sleeps(extractions: list[int]) -> None:
    other = ScriptedDrafter(lambda _: [7], name="other")
    engine(listening(), other, planner=Asking()).generate(PROMPT, max_tokens=20, ignore_eos=True)
    assert extractions == [WANTED]  # the prompt's last row


def test_only_the_requests_it_is_asked_for_are_told() -> None:
    drafter = listening()
    both = engine(drafter, planner=Asking({4}))
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    both.run([both.add(prompt, params) for prompt in ([4, 5], [6, 7])])
    told = [len(outcome.successors) for outcome in drafter.outcomes if 2 < outcome.kept < 7]
    assert sorted(told) == [0] + [1] * 4  # of the other it hears when that is over


def test_the_most_that_an_asked_drafter_wants_is_read(extractions: list[int]) -> None:
    more = ScriptedDrafter(lambda _: None, name="more", successors=5)
    engine(listening(), more).generate(PROMPT, max_tokens=4, ignore_eos=True)
    assert extractions[0] == 5
    assert set(extractions[:-1]) == {5}


def test_a_request_without_room_for_a_draft_is_not_read(extractions: list[int]) -> None:
    engine(listening()).generate(PROMPT, max_tokens=2, ignore_eos=True)
    assert len(extractions) == 1  # of the last token no draft could follow


def test_raw_logits_are_told_whatever_the_request_bans() -> None:
    banned = best(PROMPT)[0]
    drafter = listening()
    engine(drafter).generate(
        PROMPT, max_tokens=1, logit_bias={banned: -100.0}, temperature=0.7, repetition_penalty=1.3
    )
    assert drafter.outcomes[0].tokens != (banned,)
    assert drafter.outcomes[0].successors == ((PROMPT[-1], best(PROMPT)),)
