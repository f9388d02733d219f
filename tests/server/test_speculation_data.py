"""What GET /v1/speculation says for people: load, tokens so far, what the last rounds brought."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import httpx
import pytest

from foredraft import Engine
from foredraft.engine.stats import PlainRound
from foredraft.planner.records import RequestRecord, RoundRecord
from foredraft.server.extras.speculation import describe, recent
from foredraft.testing import FakeModel, ScriptedDrafter
from http_server import Running, serving, writing_model

CHOICE = RequestRecord(1, ("suffix",), (), "suffix", 3, 1.5, None, 2, 3, 1)
ROUND = RoundRecord(1, 4, 0, 100, {"suffix": 1.0}, 0.5, 7.0, 1.0, 0.5, (CHOICE,))


def steady(ms: float) -> PlainRound:
    """What plain rounds take that never vary."""
    return PlainRound(ms, 0.0, 64)


def state_of(running: Running) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{running.url}/v1/speculation").json()["fake"]
    return found


def test_the_estimated_speedup_is_time_of_plain_rounds_by_time_taken() -> None:
    found = recent([ROUND, replace(ROUND, number=2)], {1: steady(5.0)}.get)
    assert found == {"rounds": 2, "tokens": 6, "ms": 20.0, "depth": 100, "estimated_speedup": 1.5}


def test_a_shared_round_is_compared_with_plain_rounds_of_as_many() -> None:
    together = replace(ROUND, choices=(CHOICE, replace(CHOICE, request=2, committed=1)))
    found = recent([together], {1: steady(5.0), 2: steady(8.0)}.get)
    assert found is not None
    assert found["estimated_speedup"] == 1.6  # 4 tokens in 10 ms; plain rounds bring 2 in 8


def test_rounds_that_read_a_prompt_or_have_nothing_to_compare_with_do_not_count() -> None:
    prompt = replace(ROUND, prefill_rows=64, forward_ms=70.0)
    found = recent([ROUND, prompt], {1: steady(5.0)}.get)
    assert found == {"rounds": 2, "tokens": 6, "ms": 83.0, "depth": 100, "estimated_speedup": 1.5}
    for decisions in ([prompt], [ROUND]):
        found = recent(decisions, {2: steady(8.0)}.get)
        assert found is not None
        assert found["estimated_speedup"] is None
    assert recent([], {1: steady(5.0)}.get) is None


def test_rounds_without_a_draft_count_but_for_what_looking_for_one_took() -> None:
    nothing = replace(CHOICE, source=None, length=0, accepted=0, committed=1)
    found = recent([replace(ROUND, choices=(nothing,))], {1: steady(5.0)}.get)
    assert found is not None
    assert found["estimated_speedup"] == 0.8  # 2 of 10 ms
    assert ROUND.plan_ms + ROUND.late_ms + sum(ROUND.draft_ms.values()) == 2


def test_what_plain_rounds_vary_by_is_no_difference() -> None:
    found = recent([ROUND], {1: PlainRound(3.0, 1.0, 64)}.get)  # 3 tokens in 10 ms
    assert found is not None
    assert found["estimated_speedup"] == 1.0


def test_the_rounds_are_those_that_an_answer_counts() -> None:
    drafter = ScriptedDrafter(lambda tokens: [1, 2] if len(tokens) % 3 else [])
    with Engine(FakeModel(), drafters=[drafter]) as engine:
        answer = engine.generate([1, 2, 3], max_tokens=20, ignore_eos=True)
        found = describe(engine)["recent"]
    assert found["rounds"] == answer.speculation.rounds
    assert found["tokens"] == 19, "all but the first, which the prompt's forward brings"
    assert found["estimated_speedup"] is not None


def test_running_and_waiting_requests_and_what_they_hold() -> None:
    with Engine(writing_model(sequences=2)) as engine:
        for _ in range(3):
            engine.add([1, 2, 3])
        engine.step()
        state = describe(engine)
    assert state["requests"] == {"running": 2, "waiting": 1}
    assert state["kv_cache_tokens"] == 6


def test_tokens_are_counted_while_an_answer_runs() -> None:
    body = {"messages": [{"role": "user", "content": "hello"}], "stream": True}
    with serving(end=-40.0, context_length=1_000_000) as running:
        url = f"{running.url}/v1/chat/completions"
        assert httpx.post(url, json={**body, "max_tokens": 3, "stream": False}).status_code == 200
        assert state_of(running)["tokens_generated"] == 3
        with httpx.stream("POST", url, json=body, timeout=30) as reply:
            lines = reply.iter_lines()
            for _ in range(20):
                next(lines)
            during = state_of(running)
        assert during["tokens_generated"] > 3
        assert during["requests"] == {"running": 1, "waiting": 0}


@pytest.mark.parametrize("speculate", ["off", "suffix", "auto"])
def test_why_nothing_is_drafted(speculate: str) -> None:
    with Engine(writing_model()) as engine:
        engine.set_speculation(speculate)
        state = describe(engine)
        json.dumps(state)
    assert state["configured"] == speculate
    assert (
        state["reason"]
        == {
            "off": "speculation is turned off",
            "suffix": "no round that may draft has decoded yet",
            "auto": "no round that may draft has decoded yet",
        }[speculate]
    )
    assert (state["cost_curve_ms"] is not None) == (speculate == "auto")
    assert state["recent"] is None
