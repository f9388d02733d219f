"""GET /v1/speculation: what drafters did and what was decided, and nothing of anybody's text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from foredraft import Engine
from foredraft.engine.speculation import REASON_CODES
from foredraft.errors import CapacityError
from foredraft.server.auth import hash_key
from foredraft.server.extras.speculation import describe
from foredraft.server.settings import KeySettings, ServerSettings
from foredraft.types import Reason
from http_server import Running, serving, writing_model

ALICE, BOB = "ft-alice", "ft-bob"
KEYS = ServerSettings(
    keys=(KeySettings(name="alice", hash=hash_key(ALICE)), KeySettings(name="bob", hash=hash_key(BOB)))
)
SECRET = "the password is swordfish swordfish swordfish"
PARTS = {"draft", "verify", "sample", "other"}
ASKED = {
    "asked",
    "candidates",
    "drafter",
    "drafted",
    "accepted",
    "committed",
    "expected_gain",
    "reason",
    "reason_code",
    "width",
}


def ask(running: Running, key: str = "none") -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 120, "temperature": 0}
    answer = httpx.post(
        f"{running.url}/v1/chat/completions",
        json=body,
        headers={"Authorization": f"Bearer {key}"},
        timeout=30,
    )
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    return found


def state_of(running: Running, key: str = "none") -> dict[str, Any]:
    answer = httpx.get(f"{running.url}/v1/speculation", headers={"Authorization": f"Bearer {key}"})
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()["fake"]
    return found


def test_totals_by_drafter_and_the_last_decisions() -> None:
    with serving() as running:
        answers = [ask(running) for _ in range(2)]
        state = state_of(running)
    for name in ("suffix", "ngram-simple"):
        parts = [answer["speculation"]["drafters"].get(name, {}) for answer in answers]
        total = state["drafters"][name]
        for count in ("drafts", "drafted", "accepted"):
            assert total[count] == sum(part.get(count, 0) for part in parts)
        assert total["ms"] > 0
    decisions = state["decisions"]
    assert 0 < len(decisions) <= 32
    assert [decision["round"] for decision in decisions] == sorted(
        decision["round"] for decision in decisions
    )
    for decision in decisions:
        assert set(decision) == {"round", "rows", "ms", "requests"}
        assert set(decision["ms"]) == PARTS
        [request] = decision["requests"]
        assert set(request) == ASKED
        assert decision["rows"] == 1 + request["drafted"]
        assert (request["drafter"] is None) == (request["drafted"] == 0) == (request["reason"] is not None)
        lengths = {draft["drafter"]: draft["length"] for draft in request["candidates"]}
        assert (request["width"] == 0) == (request["drafted"] == 0)
        if request["drafted"]:
            assert 0 < request["drafted"] <= lengths[request["drafter"]]
            assert request["committed"] <= request["accepted"] + 1


def strings(value: object) -> Iterator[str]:
    """Every text in a JSON value, names of fields included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, part in value.items():
            yield name
            yield from strings(part)
    elif isinstance(value, list):
        for part in value:
            yield from strings(part)


def test_another_key_learns_no_text_and_whose_it_was() -> None:
    with serving(settings=KEYS) as running:
        ask(running, ALICE)
        state = state_of(running, BOB)
    assert state["decisions"]
    drafters = {"suffix", "ngram-simple"}
    codes = {*Reason, *REASON_CODES.values()}
    allowed = PARTS | ASKED | drafters | codes | {"round", "rows", "ms", "requests", "length"}
    assert set(strings(state["decisions"])) <= allowed
    assert set(strings(state["drafters"])) == drafters | {"drafts", "drafted", "accepted", "ms"}


def test_a_model_that_goes_meanwhile_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving("here", "gone") as running:
        for name in ("here", "gone"):
            httpx.post(f"{running.url}/v1/models/{name}/load")
        leaving = running.engines["gone"]

        def asked(engine: Engine) -> dict[str, Any]:
            if engine is leaving:
                raise CapacityError("The model is not loaded.")
            return describe(engine)

        monkeypatch.setattr("foredraft.server.extras.speculation.describe", asked)
        answer = httpx.get(f"{running.url}/v1/speculation")
        assert (answer.status_code, list(answer.json())) == (200, ["here"])


def test_without_drafters_nothing_was_decided() -> None:
    with Engine(writing_model()) as engine:
        engine.generate([1, 2, 3], max_tokens=5)
        state = describe(engine)
    assert state["decisions"] == []
    assert state["drafters"] == {}


def test_an_answer_says_by_a_code_why_nothing_was_drafted(server: Running) -> None:
    body = {"prompt": "abc", "max_tokens": 4, "temperature": 0, "speculate": "off"}
    said = httpx.post(f"{server.url}/v1/completions", json=body, timeout=30).json()["speculation"]
    assert said["active"] is False
    assert said["reason"]
    assert said["reason_code"] == REASON_CODES[said["reason"]]
