"""The summary of what speculation does, in codes that a page puts into words."""

from __future__ import annotations

from typing import Any

import pytest

from foredraft import Engine
from foredraft.engine.speculation import REASON_CODES
from foredraft.server.extras.speculation import describe
from foredraft.server.extras.speculation_schemas import ModelSpeculation
from foredraft.testing import FakeModel, markov_logits
from foredraft.types import Reason, SamplingParams, Undrafted
from http_server import writing_model

NOTHING = {"drafter": None, "tokens_per_forward": None, "speedup": None, "reason": None, "reason_code": None}


def summary_of(engine: Engine) -> dict[str, Any]:
    state = describe(engine)
    ModelSpeculation.model_validate({**state, "tokens_generated": 0})
    found: dict[str, Any] = state["summary"]
    return found


def looping() -> FakeModel:
    """Writes the same few tokens again and again."""
    return FakeModel(6, logits=markov_logits(6, order=1, scale=8.0))


def running(engine: Engine, rounds: int = 20) -> Engine:
    """An engine in the middle of an answer."""
    engine.add([1, 2, 3], SamplingParams(max_tokens=400, ignore_eos=True))
    for _ in range(rounds):
        engine.step()
    return engine


def test_turned_off() -> None:
    with Engine(writing_model()) as engine:
        engine.set_speculation("off")
        reason = {"reason": str(Undrafted.TURNED_OFF), "reason_code": "turned_off"}
        assert summary_of(engine) == {**NOTHING, "code": "off", **reason}


def test_drafters_that_cannot_be_used() -> None:
    with Engine(writing_model()) as engine:
        engine.set_speculation("draft-model:model=nonesuch.gguf")
        found = summary_of(engine)
    assert (found["code"], found["reason_code"]) == ("no_drafters", "no_drafter")


@pytest.mark.parametrize("adapters", [(), ("one",)])
@pytest.mark.parametrize("configured", ["auto", "suffix", "ngram-simple"])
def test_drafters_without_a_model_of_their_own_can_always_be_used(
    adapters: tuple[str, ...], configured: str
) -> None:
    with Engine(FakeModel(6, logits=markov_logits(6, order=1, scale=8.0), adapters=adapters)) as engine:
        engine.set_speculation(configured)
        assert engine.setup.reason is None
        codes = {summary_of(engine)["code"], summary_of(running(engine))["code"]}
        reasons = {summary_of(engine)["reason_code"]}
    assert "no_drafters" not in codes
    assert "no_drafter" not in reasons


def test_idle_and_a_request_that_has_not_decoded() -> None:
    with Engine(looping()) as engine:
        engine.set_speculation("suffix")
        assert summary_of(engine) == {**NOTHING, "code": "idle"}
        running(engine, 3)
        engine.abort(next(iter(engine.running_ids)))
        assert summary_of(engine) == {**NOTHING, "code": "idle"}
        engine.add([1] * 1000, SamplingParams(max_tokens=4))
        engine.step()
        found = summary_of(engine)
    assert (found["code"], found["reason_code"]) == ("measuring", "not_decoded")


def test_drafting_names_the_drafter_that_brings_most() -> None:
    with Engine(looping()) as engine:
        engine.set_speculation("ngram-simple:n=3,m=8")
        found = summary_of(running(engine, 40))
    assert (found["code"], found["drafter"], found["reason"]) == ("drafting", "ngram-simple", None)
    assert found["tokens_per_forward"] > 2


def test_plain_decoding_has_a_reason_with_a_code() -> None:
    """No text of a random model repeats eight tokens."""
    with Engine(FakeModel(4000, logits=markov_logits(4000, order=3, scale=0.1))) as engine:
        engine.set_speculation("ngram-simple:n=8,m=8")
        found = summary_of(running(engine))
    assert found["code"] == "plain"
    assert (found["reason"], found["reason_code"]) == (str(Reason.NOTHING_FOUND), "nothing_found")
    assert found["tokens_per_forward"] == 1.0


def test_every_reason_has_a_code_of_its_own() -> None:
    assert len(REASON_CODES) == len(Reason) + len(Undrafted) == len(set(REASON_CODES.values()))


def test_requests_that_want_no_drafts_are_left_out_and_not_mistaken_for_the_end() -> None:
    """Neither their rounds nor, in rounds shared with others, their part."""
    with Engine(looping()) as engine:
        engine.set_speculation("suffix")
        off = engine.add([1, 2, 3], SamplingParams(max_tokens=400, ignore_eos=True), max_draft=0)
        for _ in range(20):
            engine.step()
        state = describe(engine)
        assert (state["decisions"], state["recent"]) == ([], None)
        said = {"reason": str(Reason.SWITCHED_OFF), "reason_code": "switched_off"}
        assert state["summary"] == {**NOTHING, "code": "plain", **said}
        running(engine, 6)
        shared = describe(engine)
        engine.abort(off)
    assert shared["decisions"]
    assert {len(decision["requests"]) for decision in shared["decisions"]} == {1}
    assert "switched_off" not in {it["requests"][0]["reason_code"] for it in shared["decisions"]}
    tokens = sum(it["requests"][0]["committed"] for it in shared["decisions"])
    assert shared["recent"]["tokens"] == tokens
    assert shared["summary"]["reason_code"] != "switched_off"


def test_the_end_of_an_answer_has_a_reason_of_its_own() -> None:
    with Engine(looping()) as engine:
        engine.set_speculation("suffix")
        engine.generate([1, 2, 3], max_tokens=2, ignore_eos=True)
        last = describe(engine)["decisions"][-1]["requests"][0]
    assert (last["reason"], last["reason_code"]) == (str(Reason.NO_ROOM), "no_room")
    assert "switched off" not in last["reason"]


def test_what_tokens_cost_is_there_before_a_draft_was_verified() -> None:
    with Engine(looping()) as engine:
        engine.set_speculation("auto")
        assert describe(engine)["plain_ms"] > 0
        engine.set_speculation("suffix")
        state = describe(engine)
    assert (state["plain_ms"], state["draft_token_ms"]) == (None, {})
