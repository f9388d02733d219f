"""What was decided, as it can be watched and read: numbers and names that agree with what came out."""

from __future__ import annotations

import gc
import logging
import random
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields

import numpy as np
import pytest

import virtual_time
from foredraft import Engine, SamplingParams
from foredraft.engine import commit
from foredraft.engine.commit import verify
from foredraft.engine.decisions import KEPT
from foredraft.engine.request import Request
from foredraft.errors import BackendError, OutOfKVError
from foredraft.planner.records import Candidate, RequestRecord, RoundRecord
from foredraft.protocols import Planner
from foredraft.testing import FakeModel, ScriptedDrafter
from foredraft.types import Draft, Logits, Probs, Reason, Rows, Verdict
from planner_doubles import VOCABULARY, auto_planner, counting


def guess(history: Sequence[int]) -> Draft:
    """Two tokens that are right, and one that is not."""
    right = [(history[-1] + 1 + i) % (VOCABULARY - 1) for i in range(2)]
    return Draft((*right, 0 if right[1] != 14 else 1), "guess", features={"match_length": 5.0})


def guessing(model: FakeModel | None = None, planner: Planner | None = None) -> Engine:
    drafter = ScriptedDrafter(guess, name="guess")
    return Engine(model or FakeModel(VOCABULARY, logits=counting), drafters=[drafter], planner=planner)


def answered(engine: Engine, tokens: int = 13, max_draft: int | None = None) -> list[RoundRecord]:
    heard: list[RoundRecord] = []
    end = engine.decisions.watch(heard.append)
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    done = engine.run([engine.add([3], params, max_draft=max_draft)])
    end()
    assert not done[0].error
    return heard


# --- what is told --------------------------------------------------------------------------------------


def test_each_round_says_what_was_proposed_verified_and_accepted() -> None:
    heard = answered(guessing())
    assert [decision.number for decision in heard] == list(range(1, len(heard) + 1))
    [choice] = heard[0].choices
    assert choice.asked == ("guess",)
    [candidate] = choice.candidates
    assert (candidate.source, candidate.length, candidate.features) == ("guess", 3, {"match_length": 5.0})
    assert (choice.source, choice.length, choice.accepted, choice.committed) == ("guess", 3, 2, 3)
    assert choice.reason is None
    assert (heard[0].rows, heard[0].prefill_rows) == (4, 0)
    assert heard[0].plan_ms > 0
    assert set(heard[0].draft_ms) == {"guess"}
    assert sum(decision.choices[0].committed for decision in heard) == 13 - 1


def test_nothing_of_a_text_is_told() -> None:
    """There is a field for a count and a name, and none for a token."""

    def leaves(value: object) -> Iterator[object]:
        if isinstance(value, dict):
            value = (*value.keys(), *value.values())
        if isinstance(value, tuple | list):
            for part in value:
                yield from leaves(part)
        else:
            yield value

    names = {field.name for kind in (RoundRecord, RequestRecord, Candidate) for field in fields(kind)}
    names |= {"guess", "match_length", *Reason}
    for decision in answered(guessing()):
        for leaf in leaves(asdict(decision)):
            assert leaf is None or isinstance(leaf, int | float) or leaf in names
    assert not [name for name in names if "token" in name and name not in set(Reason)]


def test_a_request_that_may_not_be_drafted_for_says_so() -> None:
    heard = answered(guessing(), max_draft=0)
    assert {choice.reason for decision in heard for choice in decision.choices} == {Reason.SWITCHED_OFF}
    assert heard[0].choices[0].asked == ()


def test_a_drafter_that_finds_nothing() -> None:
    engine = Engine(FakeModel(VOCABULARY, logits=counting), drafters=[ScriptedDrafter(lambda history: None)])
    *heard, last = answered(engine)
    assert {choice.reason for decision in heard for choice in decision.choices} == {Reason.NOTHING_FOUND}
    assert last.choices[0].reason is Reason.NO_ROOM


def test_without_drafters_there_is_nothing_to_decide() -> None:
    engine = Engine(FakeModel(VOCABULARY, logits=counting))
    assert answered(engine) == []
    assert engine.decisions.latest() == []


def test_a_draft_that_the_kv_cache_has_no_room_for() -> None:
    class Full(FakeModel):
        def forward(self, batch: Sequence[Rows]) -> Logits:
            if any(rows.logits > 1 for rows in batch):
                raise OutOfKVError("full")
            return super().forward(batch)

    heard = answered(guessing(Full(VOCABULARY, logits=counting)), tokens=4)
    assert [decision.choices[0].reason for decision in heard] == [
        Reason.NO_CELLS,
        Reason.NO_CELLS,
        Reason.NO_ROOM,
    ]
    assert heard[0].choices[0].candidates


def test_a_request_that_fails_beside_one_that_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, heard = guessing(), list[RoundRecord]()
    engine.decisions.watch(heard.append)
    params = SamplingParams(max_tokens=9, ignore_eos=True)
    failing, going = engine.add([3], params), engine.add([5], params)

    def failed(request: Request, draft: Draft | None, rows: Logits) -> Verdict:
        if request.id == failing and request.generated:
            raise BackendError("no")
        return verify(request, draft, rows)

    monkeypatch.setattr(commit, "verify", failed)
    first, second = engine.run([failing, going])
    assert first.error
    assert not second.error
    broken = heard[0].choices
    assert [(choice.request, choice.reason, choice.committed) for choice in broken] == [
        (failing, Reason.FAILED, 0),
        (going, None, 3),
    ]


# --- what `auto` expected ------------------------------------------------------------------------------


@pytest.fixture
def copied() -> list[RoundRecord]:
    """The rounds of `auto` on a text of which a half is copied, in virtual time."""
    traces = virtual_time.trace_set([virtual_time.mixed_trace(300, random.Random(5))])
    heard: list[RoundRecord] = []
    with virtual_time.virtual_engine(traces, virtual_time.curve("steep"), "auto") as (engine, _):
        engine.decisions.watch(heard.append)
        engine.run([virtual_time.ask(engine, traces.traces[0])])
    return heard


def test_auto_tells_what_it_expected(copied: list[RoundRecord]) -> None:
    drafted = [choice for decision in copied for choice in decision.choices if choice.source]
    assert drafted
    for choice in drafted:
        assert choice.gain is not None
        assert choice.gain > 1.03
        [found] = [candidate for candidate in choice.candidates if candidate.source == choice.source]
        assert 0 < choice.length <= found.length
        assert len(found.survival) == found.length
        assert 0 < found.survival[choice.length - 1] <= found.survival[0] <= 1


def test_auto_tells_why_it_drafted_nothing(copied: list[RoundRecord]) -> None:
    plain = [choice for decision in copied for choice in decision.choices if not choice.source]
    reasons = {choice.reason for choice in plain}
    assert None not in reasons
    assert Reason.NOT_WORTH in reasons
    for choice in plain:
        if choice.reason is Reason.NOT_WORTH:
            assert choice.candidates
            assert choice.gain is not None
            assert choice.gain <= 1.03
        if choice.reason in (Reason.BACK_OFF, Reason.MEASURING):
            assert not choice.asked
        if choice.reason is Reason.NOTHING_FOUND:
            assert choice.asked
            assert not choice.candidates


def reasons_of(curve: str, requests: int) -> set[Reason | None]:
    """Those of `auto` in virtual time, for texts of which a half is copied."""
    traces = virtual_time.trace_set(
        [virtual_time.mixed_trace(300, random.Random(5 + number)) for number in range(requests)]
    )
    heard: list[RoundRecord] = []
    with virtual_time.virtual_engine(traces, virtual_time.curve(curve), "auto", sequences=requests) as (
        engine,
        _,
    ):
        engine.decisions.watch(heard.append)
        engine.run([virtual_time.ask(engine, trace) for trace in traces.traces])
    return {choice.reason for decision in heard for choice in decision.choices if not choice.source}


def test_auto_gives_each_of_its_reasons() -> None:
    alone, together = reasons_of("steep", 1), reasons_of("gpu", 8)
    assert None not in alone | together
    assert {Reason.NOTHING_FOUND, Reason.NOT_WORTH, Reason.BACK_OFF, Reason.TOO_RISKY} <= alone | together
    assert Reason.SHARED in together - alone


def test_before_a_plain_round_was_measured_that_is_the_reason() -> None:
    first, *later = answered(guessing(planner=auto_planner()))
    assert first.choices[0].reason is Reason.MEASURING
    assert not first.choices[0].asked
    assert any(decision.choices[0].asked for decision in later)


def test_requests_are_told_in_their_places() -> None:
    traces = virtual_time.noise_traces(3, prompt=50, output=40)
    heard: list[RoundRecord] = []
    with virtual_time.virtual_engine(traces, virtual_time.curve("gpu"), "auto", sequences=3) as (engine, _):
        engine.decisions.watch(heard.append)
        requests = [virtual_time.ask(engine, trace) for trace in traces.traces]
        engine.run(requests)
    together = [decision for decision in heard if len(decision.choices) == 3]
    assert together
    assert {choice.request for choice in together[0].choices} == set(requests)


# --- what is kept --------------------------------------------------------------------------------------


def test_the_last_rounds_are_kept() -> None:
    engine = guessing()
    heard = answered(engine, tokens=200)
    assert len(heard) > KEPT
    assert engine.decisions.latest() == heard[-KEPT:]


def test_no_probabilities_are_kept() -> None:
    """A sampled draft has one distribution over the vocabulary for each token: megabytes."""
    kept: list[weakref.ref[Probs]] = []

    def sampled(history: Sequence[int]) -> Draft:
        probs = np.full(VOCABULARY, 1 / VOCABULARY)
        kept.append(weakref.ref(probs))
        return Draft(((history[-1] + 1) % 15,), "guess", probs=(probs,))

    drafter = ScriptedDrafter(sampled, name="guess")
    engine = Engine(FakeModel(VOCABULARY, logits=counting), drafters=[drafter])
    engine.generate([3], max_tokens=20, ignore_eos=True, verify="rejection", temperature=1.0)
    drafter.outcomes.clear()
    assert engine.decisions.latest()
    gc.collect()
    assert len(kept) > 3
    assert sum(ref() is not None for ref in kept) <= 1


def test_the_totals_are_the_sum_of_all_requests() -> None:
    engine = guessing()
    done = [engine.generate([3], max_tokens=20, ignore_eos=True) for _ in range(3)]
    total = engine.decisions.totals()["guess"]
    parts = [completion.speculation.drafters["guess"] for completion in done]
    assert total.drafts == sum(part.drafts for part in parts)
    assert total.drafted == sum(part.drafted for part in parts)
    assert total.accepted == sum(part.accepted for part in parts) > 0
    assert total.ms == pytest.approx(sum(part.ms for part in parts), abs=0.01)


# --- listeners -----------------------------------------------------------------------------------------


def test_a_listener_that_fails_is_told_nothing_more(caplog: pytest.LogCaptureFixture) -> None:
    engine, calls = guessing(), []
    heard: list[RoundRecord] = []

    def fails(decision: RoundRecord) -> None:
        calls.append(decision)
        raise RuntimeError("no")

    engine.decisions.watch(fails)
    engine.decisions.watch(heard.append)
    with caplog.at_level(logging.ERROR):
        done = engine.generate([3], max_tokens=13, ignore_eos=True)
    assert done.tokens == tuple((4 + i) % 15 for i in range(13))
    assert len(calls) == 1
    assert len(heard) > 1
    assert "listener" in caplog.text


def test_a_listener_that_left_hears_nothing() -> None:
    engine = guessing()
    before = len(answered(engine))
    heard: list[RoundRecord] = []
    end = engine.decisions.watch(heard.append)
    end()
    end()
    engine.generate([3], max_tokens=8, ignore_eos=True)
    assert before
    assert heard == []


def test_a_tree_is_shown_with_its_nodes_and_its_width() -> None:
    def fork(history: Sequence[int]) -> Draft:
        right = (history[-1] + 1) % (VOCABULARY - 1)
        after = (right + 1) % (VOCABULARY - 1)
        wrong = (right + 5) % (VOCABULARY - 1)
        return Draft((right, wrong, after, wrong), "fork", (-1, -1, 0, 0))

    drafter = ScriptedDrafter(fork, name="fork")
    engine = Engine(FakeModel(VOCABULARY, logits=counting), drafters=[drafter])
    choices = [decision.choices[0] for decision in answered(engine)]
    verified = [choice for choice in choices if choice.length == 4]
    assert verified
    assert all((choice.width, choice.accepted) == (2, 2) for choice in verified[:-1])
    assert verified[0].candidates == (Candidate("fork", 4, {}, (), width=2),)
    chains = [decision.choices[0] for decision in answered(guessing())]
    assert {choice.width for choice in chains if choice.source} == {1}
    assert {choice.width for choice in chains if not choice.source} <= {0}
