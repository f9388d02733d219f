"""Reasoning and the template's variables in all three APIs: what the model reads in the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

import chat_templates as families
import http_server
from claude_server import replying_model, seen
from foredraft.testing import FakeModel
from http_server import Running, serving

QUESTION = [{"role": "user", "content": "Hi"}]


@contextmanager
def templated(monkeypatch: pytest.MonkeyPatch, template: str) -> Iterator[Running]:
    def model(**_: Any) -> FakeModel:
        return replying_model(lambda _: "Yes.", template)

    monkeypatch.setattr(http_server, "writing_model", model)
    with serving() as running:
        yield running


def ask(running: Running, api: str, **fields: Any) -> httpx.Response:
    asked: dict[str, tuple[str, dict[str, Any]]] = {
        "chat": ("/v1/chat/completions", {"messages": QUESTION}),
        "responses": ("/v1/responses", {"input": QUESTION}),
        "messages": ("/v1/messages", {"messages": QUESTION, "max_tokens": 5}),
        "count": ("/v1/messages/count_tokens", {"messages": QUESTION}),
    }
    path, body = asked[api]
    return httpx.post(running.url + path, json={"model": "fake", **body, **fields}, timeout=30)


OFF: list[tuple[str, dict[str, Any]]] = [
    ("chat", {"reasoning_effort": "none"}),
    ("chat", {"enable_thinking": False}),
    ("chat", {"thinking": {"type": "disabled"}}),
    ("responses", {"reasoning": {"effort": "none"}}),
    ("messages", {"thinking": {"type": "disabled"}}),
    *(
        (api, {"chat_template_kwargs": {"enable_thinking": False}})
        for api in ("chat", "responses", "messages")
    ),
]
ON: list[tuple[str, dict[str, Any]]] = [
    ("chat", {"reasoning_effort": "high"}),
    ("chat", {"enable_thinking": True}),
    ("chat", {"enable_thinking": True, "thinking": {"type": "enabled", "budget_tokens": 5}}),
    ("chat", {"thinking": {"type": "auto"}}),
    ("responses", {"reasoning": {"effort": "low"}}),
    ("messages", {"thinking": {"type": "enabled", "budget_tokens": 1024}}),
    ("messages", {"thinking": {"type": "adaptive"}}),
    ("chat", {}),
]


@pytest.mark.parametrize(("api", "fields"), OFF)
def test_reasoning_is_turned_off(monkeypatch: pytest.MonkeyPatch, api: str, fields: dict[str, Any]) -> None:
    with templated(monkeypatch, families.THINKS_IF_TOLD) as running:
        assert ask(running, api, **fields).status_code == 200
        assert seen(running).endswith("<think>\n\n</think>\n\n")


@pytest.mark.parametrize(("api", "fields"), ON)
def test_reasoning_stays_on(monkeypatch: pytest.MonkeyPatch, api: str, fields: dict[str, Any]) -> None:
    with templated(monkeypatch, families.THINKS_IF_TOLD) as running:
        assert ask(running, api, **fields).status_code == 200
        assert seen(running).endswith("<|im_start|>assistant\n")


def test_a_model_that_cannot_but_reason_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with templated(monkeypatch, families.ALWAYS_THINKS) as running:
        for api, fields in OFF:
            refused = ask(running, api, **fields)
            assert refused.status_code == 400
            assert "always reasons" in refused.text
        for api, fields in ON:
            assert ask(running, api, **fields).status_code == 200
        assert ask(running, "count", thinking={"type": "disabled"}).status_code == 400


def test_a_model_that_never_reasons_has_nothing_to_turn_on_or_off(monkeypatch: pytest.MonkeyPatch) -> None:
    with templated(monkeypatch, families.CHATML) as running:
        for api, fields in (*OFF, *ON):
            assert ask(running, api, **fields).status_code == 200


def test_how_much_is_the_template_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    with templated(monkeypatch, families.THINKS_BY_EFFORT) as running:
        assert ask(running, "chat", reasoning_effort="low").status_code == 200
        assert seen(running).startswith("Reasoning: low")


WRONG: list[object] = [{"messages": []}, {"a": "x" * 70_000}, {"a b": 1}, 5]


@pytest.mark.parametrize("api", ["chat", "responses", "messages", "count"])
def test_variables_are_bounded_and_checked(monkeypatch: pytest.MonkeyPatch, api: str) -> None:
    with templated(monkeypatch, families.CHATML) as running:
        for wrong in WRONG:
            refused = ask(running, api, chat_template_kwargs=wrong)
            assert refused.status_code in (400, 422)
            assert "chat_template_kwargs" in refused.text


def test_a_request_that_says_both_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with templated(monkeypatch, families.THINKS_IF_TOLD) as running:
        for fields in (
            {"enable_thinking": True, "thinking": {"type": "disabled"}},
            {"enable_thinking": True, "reasoning_effort": "none"},
        ):
            assert ask(running, "chat", **fields).status_code == 400
